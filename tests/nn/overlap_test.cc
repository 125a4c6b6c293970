// In backward of the column layer the collective on dx is in flight while the weight gradient is computed: it starts
// before, and is waited for after. Shown by what each order would make impossible. A rank is stopped at the moment when
// it allocates its weight gradient, and another one must be able to continue (or must not have been needed).
#include <condition_variable>
#include <mutex>

#include "megalith/nn/tensor_parallel/linear.h"
#include "tests/nn/nn_support.h"
#include "tests/support/memory_meter.h"

namespace megalith::nn {
namespace {

// Sizes that tell the tensors of backward apart.
constexpr int64_t kOverlapTokens = 12, kOverlapIn = 10, kOverlapOut = 14;
constexpr int64_t kWeightBytes = kOverlapOut / 2 * kOverlapIn * 4, kInputBytes = kOverlapTokens * kOverlapIn * 4;

// Something that happens once, on one rank, and that another waits for.
class Event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  // The test fails when it does not happen.
  void wait(const char* failure) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(10), [&] { return happened_; })) << failure;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

// One backward pass of a column layer on two ranks. `on_allocation(rank, bytes, how often that size came before)`.
void run_backward(bool sequence_parallel, const std::function<void(int, int64_t, int)>& on_allocation,
                  const std::function<void(int)>& before, const std::function<void(int)>& after) {
  run_tp({2, sequence_parallel}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set), "up", kOverlapIn, {{"up", kOverlapOut}}, false, Init::zeros(),
                                     tp);
    load(set, {{"up.weight", random_tensor({kOverlapOut, kOverlapIn}, 1)}});
    const at::Tensor x = leaf(between_blocks(random_tensor({kOverlapTokens, kOverlapIn}, 2), tp));
    const at::Tensor y = layer.forward(x), dy = at::ones_like(y);
    before(tp.rank());
    std::map<int64_t, int> seen;
    {
      const testing::MemoryMeter meter([&](int64_t bytes) { on_allocation(tp.rank(), bytes, seen[bytes]++); });
      y.backward(dy);
    }
    after(tp.rank());
    EXPECT_GE(seen[kWeightBytes], 1) << "the weight gradient was not seen";
  });
}

class Overlap : public ::testing::TestWithParam<bool> {};

// Rank 0 does not compute its weight gradient before rank 1 is through with everything, dx of both ranks included: its
// own part of that collective must have started.
TEST_P(Overlap, CollectiveStartsBeforeTheWeightGradient) {
  Event other_is_done;
  run_backward(
      GetParam(),
      [&](int rank, int64_t bytes, int) {
        if (rank == 0 && bytes == kWeightBytes)
          other_is_done.wait("rank 0 computes the weight gradient before it joins the collective");
      },
      [](int) {},
      [&](int rank) {
        if (rank == 1) other_is_done.set();
      });
}

// Rank 0 does not join the collective on dx before rank 1 computes its weight gradient: rank 1 must not wait for it.
TEST_P(Overlap, CollectiveIsWaitedForAfterTheWeightGradient) {
  const bool sequence_parallel = GetParam();
  Event other_computes;
  run_backward(
      sequence_parallel,
      [&](int rank, int64_t bytes, int nth) {
        if (rank == 1 && bytes == kWeightBytes) other_computes.set();
        // With sequence parallelism rank 0 has to join the all-gather of x; then comes its own product dy W.
        if (sequence_parallel && rank == 0 && bytes == kInputBytes && nth == 1)
          other_computes.wait("rank 1 waits for dx before it computes the weight gradient");
      },
      [&](int rank) {
        if (!sequence_parallel && rank == 0)
          other_computes.wait("rank 1 waits for dx before it computes the weight gradient");
      },
      [](int) {});
}

INSTANTIATE_TEST_SUITE_P(, Overlap, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "SequenceParallel" : "TensorParallel"; });

}  // namespace
}  // namespace megalith::nn
