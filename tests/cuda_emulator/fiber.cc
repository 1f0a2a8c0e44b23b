#include "tests/cuda_emulator/fiber.h"

#include <cstdint>
#include <cstring>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ziggurat::cuda_emulator {

#if defined(__x86_64__)
// swapcontext() asks the kernel for the signal mask at every switch, which costs a hundred times
// what the switch itself does; a warp of shuffles is made of switches.
extern "C" void ziggurat_switch_stacks(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
.text
.globl ziggurat_switch_stacks
.type ziggurat_switch_stacks, @function
ziggurat_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ziggurat_switch_stacks, .-ziggurat_switch_stacks
)");

struct Fiber::Context {
  void* own = nullptr;
  void* caller = nullptr;
};
#else
struct Fiber::Context {
  ucontext_t own;
  ucontext_t caller;
};
#endif

namespace {

/// A new stack's first frame has no arguments: who it belongs to is left here.
void* entering = nullptr;

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer knows one stack for each thread unless it is told of another.
struct SwitchToFiber {
  SwitchToFiber(const void* stack, size_t bytes) {
    __sanitizer_start_switch_fiber(&kept, stack, bytes);
  }
  ~SwitchToFiber() { __sanitizer_finish_switch_fiber(kept, nullptr, nullptr); }
  void* kept = nullptr;
};
const void* caller_stack = nullptr;
size_t caller_bytes = 0;
#endif

}  // namespace

Fiber::Fiber()
    : stack_(new std::byte[kStackBytes]), context_(new Context), thread_(race_check::Create()) {}

Fiber::~Fiber() {
  race_check::Destroy(thread_);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
#endif
}

void Fiber::Enter(void* self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &caller_stack, &caller_bytes);
#endif
  auto* fiber = static_cast<Fiber*>(self);
  (*fiber->body_)();
  fiber->done_ = true;
  fiber->Leave();
}

void Fiber::Begin(const std::function<void()>* body) {
  body_ = body;
  if (!done_) {  // the sanitizer waits for calls that will never return
    race_check::Destroy(thread_);
    thread_ = race_check::Create();
  }
  done_ = false;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
#endif
#if defined(__x86_64__)
  auto top = reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) & ~uintptr_t{15};
  // What `ret` jumps to, below it six saved registers. A function begins with the stack pointer 8
  // off a multiple of 16, as a call leaves it.
  void (*entry)() = [] { Enter(entering); };
  top -= 16;
  std::memcpy(reinterpret_cast<void*>(top), &entry, sizeof(entry));
  context_->own = reinterpret_cast<void*>(top - 6 * 8);
#else
  getcontext(&context_->own);
  context_->own.uc_stack.ss_sp = stack_.get();
  context_->own.uc_stack.ss_size = kStackBytes;
  context_->own.uc_link = nullptr;
  makecontext(&context_->own, static_cast<void (*)()>([] { Enter(entering); }), 0);
#endif
}

void Fiber::Resume() {
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  SwitchToFiber guard(stack_.get(), kStackBytes);
#endif
  caller_ = race_check::Running();
  race_check::SwitchTo(thread_);
#if defined(__x86_64__)
  ziggurat_switch_stacks(&context_->caller, context_->own);
#else
  swapcontext(&context_->caller, &context_->own);
#endif
}

void Fiber::ReleaseTo(void* at) {
  const race_check::As self(thread_);
  race_check::Release(at);
}

void Fiber::Leave() {
#if defined(__SANITIZE_ADDRESS__)
  SwitchToFiber guard(caller_stack, caller_bytes);
#endif
  race_check::SwitchTo(caller_);
#if defined(__x86_64__)
  ziggurat_switch_stacks(&context_->own, context_->caller);
#else
  swapcontext(&context_->own, &context_->caller);
#endif
}

}  // namespace ziggurat::cuda_emulator
