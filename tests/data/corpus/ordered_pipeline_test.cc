#include "megalith/data/corpus/ordered_pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

// Numbers 0 to count - 1 through a pipeline that squares them.
struct Squares {
  int count = 200;
  int workers = 4;
  std::function<void(int)> at_transform = [](int) {};
  std::atomic<int> in_flight = 0, most = 0;
  std::vector<int> results;

  void run() {
    int next = 0;
    OrderedPipeline<int, int> pipeline;
    pipeline.produce = [&](const std::stop_token&) -> std::optional<int> {
      if (next == count) return std::nullopt;
      most = std::max(most.load(), ++in_flight);
      return next++;
    };
    pipeline.transform = [&](int& number) {
      at_transform(number);
      return number * number;
    };
    pipeline.consume = [&](int& square) {
      --in_flight;
      results.push_back(square);
    };
    pipeline.run(workers, 6);
  }
};

TEST(OrderedPipeline, ResultsInOrderAndFewInFlight) {
  for (const int workers : {1, 2, 7}) {
    Squares squares{.workers = workers};
    squares.at_transform = [](int number) {
      if (number % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    squares.run();
    ASSERT_EQ(squares.results.size(), 200U);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(squares.results[static_cast<size_t>(i)], i * i);
    EXPECT_LE(squares.most, 7);  // one that is being produced
  }
}

TEST(OrderedPipeline, NothingToDo) {
  Squares squares{.count = 0};
  squares.run();
  EXPECT_TRUE(squares.results.empty());
}

TEST(OrderedPipeline, TheEarliestErrorIsThrown) {
  Squares squares;
  squares.at_transform = [](int number) {
    if (number == 10) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (number >= 10) throw DataError(std::to_string(number));
  };
  EXPECT_EQ(message_of<DataError>([&] { squares.run(); }), "10");
  EXPECT_EQ(squares.results.size(), 10U);
}

TEST(OrderedPipeline, ErrorsOfTheProducerComeInOrder) {
  OrderedPipeline<int, int> pipeline;
  int produced = 0, consumed = 0;
  pipeline.produce = [&](const std::stop_token&) -> std::optional<int> {
    if (produced == 5) throw DataError("at 5");
    return produced++;
  };
  pipeline.transform = [](int& number) { return number; };
  pipeline.consume = [&](int&) { ++consumed; };
  EXPECT_EQ(message_of<DataError>([&] { pipeline.run(3, 100); }), "at 5");
  EXPECT_EQ(consumed, 5);
}

}  // namespace
}  // namespace megalith::data
