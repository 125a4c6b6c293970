// Prefetcher: produces the next items on a thread while the current one is in use.
//
//   Prefetcher<Batch> batches([&] { return reader.read(); }, /*capacity=*/2);
//   while (auto batch = batches.next()) train(*batch);
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace megalith::io {

// Calls `produce` on its own thread, in order, and holds at most `capacity` items. An exception from `produce` is
// rethrown by the next() that would have returned its item, after all items before it. The destructor stops the thread:
// it waits for at most one running call of `produce`. For one consumer thread.
template <typename T>
class Prefetcher {
 public:
  // `produce` returns std::nullopt at the end.
  Prefetcher(std::function<std::optional<T>()> produce, size_t capacity)
      : produce_(std::move(produce)), capacity_(capacity == 0 ? 1 : capacity), thread_([this] { run(); }) {}

  // Items that were produced and not taken are dropped.
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Returns the next item, or std::nullopt at the end. Further calls after the end or an exception repeat it.
  std::optional<T> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !items_.empty() || ended_; });
    if (items_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<T> item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  void run() {
    std::exception_ptr error;
    try {
      while (wait_for_room())
        if (!add(produce_())) break;
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      error_ = error;
    }
    changed_.notify_all();
  }

  // Returns false when the consumer has gone.
  bool wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return items_.size() < capacity_ || stopped_; });
    return !stopped_;
  }

  // Returns false at the end.
  bool add(std::optional<T> item) {
    if (!item) return false;
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(*item));
    }
    changed_.notify_all();
    return true;
  }

  // Constant after construction.
  std::function<std::optional<T>()> produce_;
  size_t capacity_;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool ended_ = false, stopped_ = false;
  std::exception_ptr error_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace megalith::io
