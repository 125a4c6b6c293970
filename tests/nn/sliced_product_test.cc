// Collectives of sequence parallelism in slices: how tokens are divided, that products of slices are the product of the
// whole, and that collectives really are in flight while products run. Shown by ranks that stop inside a product: what
// another one must be able to do meanwhile would be impossible in any other order.
#include "megalith/nn/tensor_parallel/sliced_product.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/parallel/nccl_options.h"
#include "tests/nn/nn_support.h"
#include "tests/support/memory_meter.h"

namespace megalith::nn {
namespace {

// The progress of a rank, which another one waits for.
class Progress {
 public:
  void reach(int64_t step) {
    const std::lock_guard lock(mutex_);
    reached_ = step;
    changed_.notify_all();
  }
  // The test fails if that step is not reached.
  void wait_for(int64_t step, const char* failure) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return reached_ >= step; })) << failure;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t reached_ = -1;
};

TEST(SliceCount, FillsAGpuWithEverySlice) {
  constexpr bool kCuda = true;
  EXPECT_EQ(slice_count(1024, 8, 7168, kCuda), 4);  // 56 Mi results: as many as there are at most
  EXPECT_EQ(slice_count(1024, 8, 1280, kCuda), 2);  // 10 Mi
  EXPECT_EQ(slice_count(1024, 8, 1024, kCuda), 2);  // exactly two waves
  EXPECT_EQ(slice_count(1024, 8, 1000, kCuda), 1);
  EXPECT_EQ(slice_count(2, 2, 1 << 24, kCuda), 2);  // not more than rows
  EXPECT_EQ(slice_count(0, 8, 1024, kCuda), 1);
  EXPECT_EQ(slice_count(1, 8, 8, !kCuda), 1);
  EXPECT_EQ(slice_count(3, 8, 8, !kCuda), 3);
  EXPECT_EQ(slice_count(100, 8, 8, !kCuda), 4);
}

TEST(SliceCount, IsTheUsersIfThereAreRows) {
  EXPECT_EQ(slice_count(1024, 8, 8, /*cuda=*/true, 3), 3);
  EXPECT_EQ(slice_count(1024, 8, 7168, /*cuda=*/true, 1), 1);
  EXPECT_EQ(slice_count(2, 8, 8, /*cuda=*/true, 3), 2);
}

TEST(TokenSlices, CoverEveryRowOnce) {
  for (const auto& [rows, count] : std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {7, 3}, {1000, 4}, {256, 2}}) {
    const TokenSlices slices(rows, 3, count);
    SCOPED_TRACE(rows);
    int64_t next = 0;
    for (int64_t k = 0; k < count; ++k) {
      EXPECT_EQ(slices.first(k), next);
      EXPECT_GT(slices.rows(k), 0);
      next += slices.rows(k);
    }
    EXPECT_EQ(next, rows);
    EXPECT_EQ(slices.tokens(), 3 * rows);
  }
  EXPECT_EQ(TokenSlices(1000, 8, 4).first(1), 192) << "slices begin with a tile of 64 rows";
  testing::expect_error<InternalError>([] { TokenSlices(2, 2, 3); }, {"2 rows", "3 slices"});
}

TEST(TokenSlices, ReorderTokens) {
  const TokenSlices slices(3, 2, 2);  // slices of one and of two rows
  const at::Tensor tokens = at::arange(6).unsqueeze(1), sliced = slices.in_slice_order(tokens);
  expect_identical(sliced.flatten(), at::tensor({0, 3, 1, 2, 4, 5}, at::kLong), "slice order");
  for (const int64_t k : {0, 1})
    expect_identical(slices.of_slices(sliced, k), slices.of_tokens(tokens, k), "a slice in both orders");
  EXPECT_EQ(slices.of_tokens(tokens, 1).data_ptr(), tokens[1].data_ptr()) << "a view";
}

constexpr int64_t kSliceRows = 8, kSliceIn = 6, kSliceOut = 12, kSliceRanks = 2;

// Rank 0 does not end its first product before rank 1 has finished all of them: its gathers must all have started.
TEST(GatherAndMultiply, GathersTheNextSliceBesideAProduct) {
  const at::Tensor x = random_tensor({kSliceRanks * kSliceRows, kSliceIn}, 1);
  const at::Tensor w = random_tensor({kSliceIn, kSliceOut}, 2);
  Progress other;
  run_tp({kSliceRanks, true}, [&](const TensorParallel& tp) {
    const TokenSlices slices(kSliceRows, kSliceRanks, 4);
    int64_t products = 0;
    const GatheredProduct made = gather_and_multiply(
        between_blocks(x, tp), kSliceOut, slices, tp.group, "test",
        [&](const at::Tensor& out, const at::Tensor& in, Beside beside) {
          if (tp.rank() == 0 && products == 0) other.wait_for(4, "rank 0 multiplies before it starts all gathers");
          EXPECT_EQ(beside, ++products < 4 ? Beside::kCollective : Beside::kNothing) << "product " << products;
          out.copy_(in.matmul(w));
        });
    if (tp.rank() == 1) other.reach(4);
    expect_close(made.output, x.mm(w), "product");
    expect_identical(made.input, slices.in_slice_order(x), "gathered input");
  });
}

// Rank 0 stops in its first product until rank 1 begins its last: rank 1 waits for no sum while it multiplies. Each sum
// is then started before rank 0's next product: as the last to arrive, rank 0 computes it, and is seen to allocate it.
TEST(MultiplyAndScatter, ScattersASliceBesideTheNextProduct) {
  const at::Tensor x = random_tensor({kSliceRanks * kSliceRows, kSliceIn}, 1);
  const at::Tensor w = random_tensor({kSliceIn, kSliceOut}, 2);
  constexpr int64_t kSums = kSliceRows / 4 * kSliceOut * 4;  // bytes of a slice's sum
  Progress other;
  run_tp({kSliceRanks, true}, [&](const TensorParallel& tp) {
    const TokenSlices slices(kSliceRows, kSliceRanks, 4);
    int64_t products = 0, sums = 0;
    const testing::MemoryMeter meter([&](int64_t bytes) { sums += bytes == kSums ? 1 : 0; });
    const at::Tensor sum = multiply_and_scatter(
        x, kSliceOut, slices, tp.group, "test", [&](const at::Tensor& out, const at::Tensor& in, Beside beside) {
          EXPECT_EQ(beside, products > 0 ? Beside::kCollective : Beside::kNothing) << "product " << products;
          if (tp.rank() == 1) other.reach(products);
          if (tp.rank() == 0 && products == 0) other.wait_for(3, "rank 1 waits for a sum before its next product");
          if (tp.rank() == 0 && products >= 1 && products < 3) {
            EXPECT_GE(sums, products) << "a sum has not started before product " << products;
          }
          for (int64_t r = 0; r < kSliceRanks; ++r) {
            at::Tensor block = out[r];
            at::mm_out(block, in[r], w);  // allocates nothing
          }
          ++products;
        });
    expect_close(sum, between_blocks(x.mm(w) * kSliceRanks, tp), "sum of equal products");
  });
}

// Returns the collectives of this rank's group whose label is `label`.
int64_t collectives(const comm::World& world, const std::string& label) {
  const std::vector<std::string> all = world.recent_operations();
  return std::count_if(all.begin(), all.end(),
                       [&](const std::string& one) { return one.find("'" + label + "'") != std::string::npos; });
}

// Layers slice the collectives that nothing else hides, and no others.
TEST(SlicedLinear, SlicesWhatWouldBeExposed) {
  for (const bool frozen : {false, true})
    testing::run_ranks(kSliceRanks, [&](const testing::Rank& r) {
      SCOPED_TRACE(frozen ? "frozen" : "trained");
      const TensorParallel tp{.group = r.world.world(), .sequence_parallel = true, .overlap = true};
      ParameterSet set(at::kFloat, at::kCPU);
      const ColumnParallelLinear up(ParameterScope(set), "up", kSliceIn, {{"up", kSliceOut}}, false, Init::zeros(), tp);
      const RowParallelLinear down(ParameterScope(set), "down", kSliceOut, kSliceIn, false, Init::zeros(), tp);
      for (const auto& parameter : set.all()) parameter->value.requires_grad_(!frozen);
      const at::Tensor x = leaf(random_tensor({kSliceRows, kSliceIn}, 1));
      down.forward(up.forward(x)).sum().backward();
      EXPECT_EQ(collectives(r.world, "column linear input"), 4);
      EXPECT_EQ(collectives(r.world, "row linear"), 4);
      EXPECT_EQ(collectives(r.world, "row linear backward"), 4);
      // Beside dy W and the weight gradient; a frozen weight has none.
      EXPECT_EQ(collectives(r.world, "column linear backward input"), frozen ? 0 : 1);
      EXPECT_EQ(collectives(r.world, "column linear backward"), frozen ? 4 : 1);
    });
}

// Takes no product, and notes how many multiprocessors each should leave free.
class NotedPlans final : public ops::GemmPlans {
 public:
  bool run(const at::Tensor&, const at::Tensor&, const at::Tensor&, const ops::Addends&, double, double,
           ops::KernelChoice) override {
    spared.push_back(GemmPlans::spared());
    return false;
  }
  std::vector<int> spared;
};

// Kernels that hold every multiprocessor would keep the collectives beside them waiting.
TEST(SlicedLinear, LeavesRoomForCollectives) {
  for (const bool overlap : {false, true})
    testing::run_ranks(kSliceRanks, [&](const testing::Rank& r) {
      SCOPED_TRACE(overlap ? "overlap" : "none");
      const TensorParallel tp{.group = r.world.world(), .sequence_parallel = true, .overlap = overlap};
      ParameterSet set(at::kFloat, at::kCPU);
      const ColumnParallelLinear up(ParameterScope(set), "up", kSliceIn, {{"up", kSliceOut}}, false, Init::zeros(), tp);
      const RowParallelLinear down(ParameterScope(set), "down", kSliceOut, kSliceIn, false, Init::zeros(), tp);
      NotedPlans plans;
      for (const auto& parameter : set.all()) parameter->plans = &plans;
      attach_main_grads(set);
      WeightGradQueue queue = WeightGradQueue::for_cover();
      for (const auto& parameter : set.all()) parameter->grad.queue = overlap ? &queue : nullptr;
      const auto noted = [&] { return std::exchange(plans.spared, {}); };
      const at::Tensor hidden = up.forward(leaf(random_tensor({kSliceRows, kSliceIn}, 1)));
      const std::vector<int> gathered = noted();
      const at::Tensor y = down.forward(hidden);
      const std::vector<int> scattered = noted();
      y.sum().backward();
      const std::vector<int> backward = noted();
      if (!overlap) {
        for (const auto& all : {gathered, scattered, backward}) EXPECT_EQ(std::ranges::count(all, 0), std::ssize(all));
        return;
      }
      // A slice has a block of rows from each rank, and a block is a product of its own on the CPU.
      constexpr int kRoom = parallel::kOverlappedCtas;
      EXPECT_EQ(gathered, (std::vector<int>{kRoom, kRoom, kRoom, kRoom, kRoom, kRoom, 0, 0}));
      EXPECT_EQ(scattered, (std::vector<int>{0, 0, kRoom, kRoom, kRoom, kRoom, kRoom, kRoom}));
      // dx of down beside the gathers of dy; then both weight gradients, small ones, beside the scatter of dx of up.
      EXPECT_EQ(std::ranges::count(backward, kRoom), 6 + 2);
      EXPECT_EQ(plans.spared.size(), 0U);
      EXPECT_EQ(plans.GemmPlans::spared(), 0) << "after the layers";
    });
}

// A schedule that computes weight gradients later: their inputs are gathered beside the jobs before them.
TEST(SlicedLinear, DefersWeightGradients) {
  const at::Tensor x = random_tensor({kSliceRanks * kSliceRows, kSliceIn}, 1);
  const at::Tensor dy = random_tensor({kSliceRanks * kSliceRows, kSliceIn}, 2);
  const FullTensors weights{{"up.weight", random_tensor({kSliceOut, kSliceIn}, 3)},
                            {"down.weight", random_tensor({kSliceIn, kSliceOut}, 4)}};
  const Expected expected =
      evaluate([](const at::Tensor& in,
                  const FullTensors& w) { return in.mm(w.at("up.weight").t()).mm(w.at("down.weight").t()); },
               x, weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear up(ParameterScope(set), "up", kSliceIn, {{"up", kSliceOut}}, false, Init::zeros(), tp);
    const RowParallelLinear down(ParameterScope(set), "down", kSliceOut, kSliceIn, false, Init::zeros(), tp);
    load(set, weights);
    attach_main_grads(set);
    WeightGradQueue queue;
    for (const auto& parameter : set.all()) parameter->grad.queue = &queue;
    const at::Tensor input = leaf(between_blocks(x, tp));
    const at::Tensor y = down.forward(up.forward(input));
    {
      const WeightGradQueue::Recording recording(queue);
      y.backward(between_blocks(dy, tp));
    }
    expect_close(input.grad(), between_blocks(expected.dx, tp), "gradient of the input", 1e-5, 1e-5);
    queue.run_oldest();
    expect_grads(set, expected.grads, tp);
  });
}

TEST(WeightGradQueue, StartsAJobDuringTheOneBeforeIt) {
  WeightGradQueue queue;
  std::vector<std::string> order;
  const auto note = [&](const char* what) { return [&order, what] { order.emplace_back(what); }; };
  {
    const WeightGradQueue::Recording recording(queue);
    queue.start_ahead(note("start 0"));
    queue.add(note("run 0"));
    queue.add(note("run 1"));
    queue.start_ahead(note("start 2"));
    testing::expect_error<InternalError>([&] { queue.start_ahead([] {}); }, {"twice"});
    queue.add(note("run 2"));
  }
  queue.run_oldest();
  EXPECT_EQ(order, (std::vector<std::string>{"start 0", "run 0", "start 2", "run 1", "run 2"}));
}

}  // namespace
}  // namespace megalith::nn
