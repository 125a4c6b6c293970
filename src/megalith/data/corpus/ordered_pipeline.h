// Work on a stream in parallel, with results in the stream's order and bounded memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace megalith::data {

// One use: construct, run().
//
//   produce    called on one thread until it returns nothing
//   transform  called on `workers` threads
//   consume    called on the thread of run(), with the results in the order of production
//
// At most `in_flight` items are between produce and the end of consume. When one of them throws, everything stops and
// run() throws what belongs to the earliest item; later items may have been transformed in vain. `produce` gets a token
// by which it learns that it should not wait any longer.
template <typename In, typename Out>
class OrderedPipeline {
 public:
  std::function<std::optional<In>(const std::stop_token&)> produce;
  std::function<Out(In&)> transform;
  std::function<void(Out&)> consume;

  void run(int workers, size_t in_flight) {
    std::vector<std::jthread> threads;
    const StopAtEnd stop{*this};
    threads.emplace_back([this, in_flight] { produce_all(in_flight); });
    for (int i = 0; i < workers; ++i) threads.emplace_back([this] { transform_all(); });
    while (auto result = next_result()) {
      if (const auto* error = std::get_if<std::exception_ptr>(&*result)) std::rethrow_exception(*error);
      consume(std::get<Out>(*result));
      const std::lock_guard lock(mutex_);
      ++consumed_;
      changed_.notify_all();
    }
  }

 private:
  using Result = std::variant<Out, std::exception_ptr>;

  // However run() ends, its threads end before they are joined.
  struct StopAtEnd {
    OrderedPipeline& pipeline;
    ~StopAtEnd() { pipeline.stop_all(); }
  };

  void stop_all() {
    stop_.request_stop();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void produce_all(size_t in_flight) {
    for (size_t number = 0;; ++number) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_.stop_requested() || number - consumed_ < in_flight; });
        if (stop_.stop_requested()) return;
      }
      Produced produced = produce_one();
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
      if (produced.item) {
        waiting_.emplace_back(number, *std::move(produced.item));
        continue;
      }
      end_ = number;
      if (produced.error) {
        done_.emplace(number, std::move(produced.error));
        end_ = number + 1;
      }
      return;
    }
  }

  // One item, or what was thrown, or neither at the end.
  struct Produced {
    std::optional<In> item;
    std::exception_ptr error;
  };
  Produced produce_one() {
    try {
      return {.item = produce(stop_.get_token()), .error = nullptr};
    } catch (...) {
      return {.item = std::nullopt, .error = std::current_exception()};
    }
  }

  void transform_all() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_.stop_requested() || !waiting_.empty() || end_; });
      if (stop_.stop_requested() || waiting_.empty()) return;
      auto [number, item] = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      std::optional<Result> result;
      try {
        result.emplace(transform(item));
      } catch (...) {
        result.emplace(std::current_exception());
      }
      lock.lock();
      done_.emplace(number, *std::move(result));
      changed_.notify_all();
    }
  }

  // The result of item number consumed_; nothing behind the last.
  std::optional<Result> next_result() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(consumed_) || end_ == consumed_; });
    if (!done_.contains(consumed_)) return std::nullopt;
    return std::move(done_.extract(consumed_).mapped());
  }

  std::stop_source stop_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::pair<size_t, In>> waiting_;
  std::map<size_t, Result> done_;
  size_t consumed_ = 0;
  std::optional<size_t> end_;  // number of items, once it is known
};

}  // namespace megalith::data
