// A queue between two threads: the messages at the engine's borders.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace ziggurat {

/// Any number of senders; one receiver takes everything that has come so far.
template <typename T>
class Mailbox {
 public:
  void Send(T message) {
    {
      std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }

  void SendAll(std::vector<T>& messages) {
    if (messages.empty()) return;
    {
      std::lock_guard lock(mutex_);
      if (messages_.empty()) {
        messages_.swap(messages);  // and room for as many as the receiver has taken comes back
      } else {
        for (T& message : messages) messages_.push_back(std::move(message));
        messages.clear();
      }
    }
    arrived_.notify_one();
  }

  /// No more messages will come. The receiver still gets those sent before.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    arrived_.notify_all();
  }

  /// What has come so far, perhaps nothing.
  std::vector<T> TakeNow() {
    std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }

  /// Waits for the first message, the closing, or `until`.
  std::vector<T> TakeUntil(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    arrived_.wait_until(lock, until, [this] { return closed_ || !messages_.empty(); });
    return std::exchange(messages_, {});
  }

  /// Waits for the first message. False when closed and empty.
  bool Take(std::vector<T>* messages) {
    messages->clear();
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return closed_ || !messages_.empty(); });
    messages->swap(messages_);
    return !messages->empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<T> messages_;
  bool closed_ = false;
};

}  // namespace ziggurat
