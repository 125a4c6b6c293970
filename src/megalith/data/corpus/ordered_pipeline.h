// OrderedPipeline: processes a stream in parallel, with results in the order of the stream and bounded memory.
//
//   OrderedPipeline<std::string, int> pipeline;
//   pipeline.produce = [&](const std::stop_token&) { return next_line(); };
//   pipeline.transform = [](std::string& line) { return my_word_count(line); };
//   pipeline.consume = [&](int& words) { total += words; };
//   pipeline.run(/*workers=*/8, /*in_flight=*/18);
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

// Used once: set the three functions and call run().
//
//   produce    called on one thread until it returns std::nullopt
//   transform  called on `workers` threads
//   consume    called on the thread of run(), with the results in the order of production
//
// At most `in_flight` items are between produce and the end of consume. If a function throws, everything stops and
// run() rethrows the error of the earliest item; work on later items is lost. The stop token of `produce` tells it to
// stop waiting for input.
//
// Items get numbers when they are produced; a number is the only thing that ties a result to its place.
template <typename In, typename Out>
class OrderedPipeline {
 public:
  std::function<std::optional<In>(const std::stop_token&)> produce;
  std::function<Out(In&)> transform;
  std::function<void(Out&)> consume;

  // Returns when everything has been consumed, or throws the first error; in both cases no thread is left. `in_flight`
  // should exceed `workers`, so that a slow item does not idle the others.
  void run(int workers, size_t in_flight) {
    std::vector<std::jthread> threads;
    // Declared after `threads`, so it stops them before their destructors join them.
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

  // Tells the threads to stop before they are joined, however run() ends. A destructor, because consume() or a rethrown
  // error may leave run() at any point.
  struct StopAtEnd {
    OrderedPipeline& pipeline;
    ~StopAtEnd() { pipeline.stop_all(); }
  };

  // Wakes everybody: the producer that waits for room, workers that wait for items, and the consumer.
  void stop_all() {
    stop_.request_stop();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // The producer waits for room before it produces, so memory is bounded by items, not by threads. An error takes the
  // number of the item that it replaces, so that it is rethrown in its turn.
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

  // An item, an error, or neither at the end.
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

  // Workers take items in order and finish in any order; done_ sorts them again.
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

  // Waits for the result of item number consumed_; std::nullopt after the last. Called on the thread of run() only, so
  // consumed_ does not change while it waits.
  std::optional<Result> next_result() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(consumed_) || end_ == consumed_; });
    if (!done_.contains(consumed_)) return std::nullopt;
    return std::move(done_.extract(consumed_).mapped());
  }

  // State shared by the three kinds of threads.
  std::stop_source stop_;
  std::mutex mutex_;                           // guards the members below
  std::condition_variable changed_;            // any of them has changed, or a stop was requested
  std::deque<std::pair<size_t, In>> waiting_;  // produced, with their numbers
  std::map<size_t, Result> done_;              // transformed, by number
  size_t consumed_ = 0;
  std::optional<size_t> end_;  // number of items, once it is known
};

}  // namespace megalith::data
