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
    waiting_bytes_ += bytes;
    waiting_.push_back({bytes, std::move(work)});
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
    Text text = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    text.work();
    text.work = nullptr;  // a request's memory is no longer than its work
    waiting_bytes_ -= text.bytes;
    lock.lock();
  }
}

}  // namespace ziggurat
