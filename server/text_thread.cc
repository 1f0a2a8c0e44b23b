#include "server/text_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace ziggurat {

TextThread::~TextThread() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TextThread::Run(size_t bytes, std::function<void()> work) {
  if (IsShort(bytes)) {
    work();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void TextThread::Loop() {
  // On Linux this is of the thread alone. Steps of the engine come first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // a request's memory is no longer than its work
    lock.lock();
  }
}

}  // namespace ziggurat
