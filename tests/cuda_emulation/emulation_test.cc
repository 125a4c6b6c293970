// The emulation itself: what it notices.
#include "tests/cuda_emulation/emulation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/base/error.h"
#include "tests/cuda_emulation/kernel_case.h"
#include "tests/cuda_emulation/sample_kernels.h"

namespace megalith::ops {
namespace {

// For all tests of this program: libtorch's threads would only wait for each other beside those of other tests.
class OneThread : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const one_thread = ::testing::AddGlobalTestEnvironment(new OneThread);

using cuda_emulation::Order;
using cuda_emulation::Stream;
using Floats = std::vector<float>;
using Ints = std::vector<int>;

template <typename Sample>
std::string message_of(const Sample& sample) {
  try {
    sample();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Emulation, AMissingBarrierGivesOtherResultsInAnotherOrder) {
  for (const auto sample : {neighbours_sample, dynamic_neighbours_sample})
    for (const bool with_barrier : {true, false}) {
      std::vector<Floats> results;
      for (const Order order : {Order::kFirstToLast, Order::kLastToFirst, Order::kShuffled}) {
        Stream stream{order};
        sample(with_barrier, results.emplace_back(kSampleThreads).data(), &stream);
      }
      for (size_t i = 0; i < kSampleThreads && with_barrier; ++i)
        EXPECT_EQ(results[0][i], static_cast<float>((i + 1) % kSampleThreads));
      EXPECT_EQ(results[1] == results[0], with_barrier);
      EXPECT_EQ(results[2] == results[0], with_barrier);
    }
}

TEST(Emulation, SharedMemoryIsNanUntilWritten) {
  for (int again = 0; again < 2; ++again) {
    Floats out(kSampleThreads);
    unwritten_sample(out.data(), nullptr);
    for (const float x : out) EXPECT_TRUE(std::isnan(x));
    neighbours_sample(true, out.data(), nullptr);
  }
}

TEST(Emulation, ShufflesGiveTheLanesValue) {
  Ints out(kSampleThreads);
  shuffle_sample(0, out.data(), nullptr);
  for (int i = 0; i < kSampleThreads; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i + 2) % 32);
}

TEST(Emulation, AShuffleWithoutALaneIsAnError) {
  Ints out(kSampleThreads);
  EXPECT_EQ(
      message_of([&] { shuffle_sample(1, out.data(), nullptr); }),
      "the CUDA kernel shuffle could not be started: block (0, 0, 0), thread (1, 0, 0): waits in a shuffle for lane "
      "0 of its warp, which has ended");
  shuffle_sample(0, out.data(), nullptr);  // the next launch is not concerned
}

TEST(Emulation, AShuffleBesideABarrierIsAnError) {
  Ints out(kSampleThreads);
  const std::string message = message_of([&] { divergent_sample(40, out.data(), nullptr); });
  EXPECT_NE(
      message.find("thread (40, 0, 0): waits in a shuffle for lane 0 of its warp, which waits at another barrier"),
      std::string::npos)
      << message;
}

TEST(Emulation, ThreadsMayReturnBeforeABarrier) {
  for (const Order order : {Order::kFirstToLast, Order::kLastToFirst, Order::kShuffled}) {
    Stream stream{order};
    Ints out(kSampleThreads, 7);
    early_return_sample(out.data(), &stream);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(i % 2));
  }
}

TEST(Emulation, Indices) {
  Ints out(15);
  indices_sample(5, out.data(), nullptr);
  for (int b = 0; b < 5; ++b)
    EXPECT_EQ(Ints(out.begin() + 3 * b, out.begin() + 3 * b + 3), (Ints{5, b, kSampleThreads - 1}));
}

TEST(Emulation, LaunchesThatADeviceWouldRefuse) {
  EXPECT_NE(message_of([] { greedy_sample(nullptr); }).find("65536 bytes of dynamic shared memory; 49152 are allowed"),
            std::string::npos);
  EXPECT_NE(message_of([] { indices_sample(0, nullptr, nullptr); }).find("no blocks"), std::string::npos);
}

}  // namespace
}  // namespace megalith::ops
