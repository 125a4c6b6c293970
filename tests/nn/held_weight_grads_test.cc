// Weight gradients that wait for collectives of tensor parallelism to run beside: which of them run when, that nothing
// is lost, and that collectives really are in flight meanwhile. Shown by ranks that stop inside a held job: what
// another one must be able to do meanwhile would be impossible in any other order.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "megalith/nn/footprint/held_jobs.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/linear_function.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

TEST(HeldJobs, RunsTheOldestAndKeepsTwo) {
  HeldJobs held;
  std::string order;
  const auto add = [&](double work, char name) { held.add(work, [&order, name] { order += name; }); };
  add(4, 'a');
  add(1, 'b');
  add(0, '.');
  add(4, 'c');
  held.run(5);
  EXPECT_EQ(order, "ab.") << "a alone is not enough; a report needs no collective";
  add(1, 'd');
  add(1, 'e');
  EXPECT_EQ(held.work(), 6);
  held.run(0);
  EXPECT_EQ(order, "ab.c") << "two remain";
  held.run(100);
  EXPECT_EQ(order, "ab.cde");
  EXPECT_EQ(held.work(), 0);
}

constexpr int64_t kHeldTokens = 16, kHeldHidden = 6, kHeldWidth = 12;

at::Tensor plain_mlp(const at::Tensor& x, const FullTensors& w) {
  return at::silu(x.mm(w.at("gate.weight").t())).mul(x.mm(w.at("up.weight").t())).mm(w.at("down.weight").t());
}

FullTensors mlp_weights(int64_t width) {
  return {{"gate.weight", random_tensor({width, kHeldHidden}, 3)},
          {"up.weight", random_tensor({width, kHeldHidden}, 4)},
          {"down.weight", random_tensor({kHeldHidden, width}, 5, 1 / std::sqrt(static_cast<double>(width)))}};
}

// Two passes through a stack of two MLPs with the same weights, whose gradients therefore add up, against plain ATen.
void expect_sums(int64_t width, bool recompute, double tolerance = testing::kClose) {
  const at::Tensor x = random_tensor({kHeldTokens, kHeldHidden}, 1), dy = random_tensor({kHeldTokens, kHeldHidden}, 2);
  const FullTensors weights = mlp_weights(width);
  const Expected expected = evaluate(
      [](const at::Tensor& in, const FullTensors& w) { return plain_mlp(plain_mlp(in, w), w); }, x, weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const Mlp mlp(ParameterScope(set), {.hidden = kHeldHidden, .width = width}, tp);
    load(set, weights);
    attach_main_grads(set);
    auto queue = WeightGradQueue::for_cover();
    for (const auto& parameter : set.all()) parameter->grad.queue = &queue;
    const auto run = [&](const at::Tensor& in) {
      if (!recompute) return mlp.forward(in, {});
      return nn::recompute([&](const TensorList& again) { return mlp.forward(again[0], {}); }, {in}, nullptr);
    };
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor input = leaf(between_blocks(x, tp));
      run(run(input)).backward(between_blocks(dy, tp));
      EXPECT_EQ(queue.held(), 0) << "the end of a pass computes what is left";
      expect_close(input.grad(), between_blocks(expected.dx, tp), "gradient of the input", tolerance, tolerance);
    }
    FullTensors twice;
    for (const auto& [name, grad] : expected.grads) twice[name] = 2 * grad;
    expect_grads(set, twice, tp, tolerance);
  });
}

TEST(HeldWeightGrads, AddUpOverLayersAndPasses) { expect_sums(kHeldWidth, /*recompute=*/false); }
TEST(HeldWeightGrads, AddUpInRecomputedRegions) { expect_sums(kHeldWidth, /*recompute=*/true); }

// So wide that the weights of four ranks are held in halves; sums over the width are that much less exact in fp32.
TEST(HeldWeightGrads, AddUpInHalves) {
  const int64_t width = 4 * static_cast<int64_t>(4 * cover_work(4));
  expect_sums(width, /*recompute=*/false, /*tolerance=*/1e-4);
}

// The identity, whose backward leaves a job in the queue.
struct Hold : torch::autograd::Function<Hold> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, WeightGradQueue* queue,
                            const std::function<void()>* job) {
    ctx->saved_data["queue"] = reinterpret_cast<int64_t>(queue);
    ctx->saved_data["job"] = reinterpret_cast<int64_t>(job);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* const queue = reinterpret_cast<WeightGradQueue*>(ctx->saved_data["queue"].toInt());
    queue->hold(1, *reinterpret_cast<const std::function<void()>*>(ctx->saved_data["job"].toInt()));
    return {grads[0], {}, {}};
  }
};

// Something that happens once, on one rank, and that another waits for.
class Done {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// Returns the collectives of this rank whose label is `label`.
int64_t labelled(const comm::World& world, const std::string& label) {
  const std::vector<std::string> all = world.recent_operations();
  return std::count_if(all.begin(), all.end(),
                       [&](const std::string& one) { return one.find("'" + label + "'") != std::string::npos; });
}

// One layer below a node that holds a job. Rank 0 stops in that job until rank 1 has finished its backward pass, with a
// collective that needs rank 0: rank 0 must have started it before.
void expect_beside(bool row, const char* label) {
  Done other;
  testing::run_ranks(2, [&](const testing::Rank& r) {
    const TensorParallel tp{.group = r.world.world(), .sequence_parallel = true, .overlap = true};
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear up(ParameterScope(set), "up", 6, {{"up", 12}}, false, Init::zeros(), tp);
    const RowParallelLinear down(ParameterScope(set), "down", 12, 6, false, Init::zeros(), tp);
    attach_main_grads(set);
    auto queue = WeightGradQueue::for_cover();
    for (const auto& parameter : set.all()) parameter->grad.queue = &queue;
    const at::Tensor x = leaf(row ? random_tensor({16, 6}, 1) : random_tensor({8, 6}, 1));
    const std::function<void()> job = [&] {
      const bool free = r.rank == 1 || other.wait();
      EXPECT_TRUE(free) << label << " has not started when the held job runs";
    };
    Hold::apply(row ? down.forward(x) : up.forward(x), &queue, &job).sum().backward();
    if (r.rank == 1) other.set();
    EXPECT_EQ(queue.held(), 0);
    EXPECT_EQ(labelled(r.world, label), 1) << "in one piece, since the job hides it";
  });
}

TEST(HeldWeightGrads, RunBesideTheGatherOfARowLayer) { expect_beside(/*row=*/true, "row linear backward"); }
TEST(HeldWeightGrads, RunBesideTheScatterOfAColumnLayer) { expect_beside(/*row=*/false, "column linear backward"); }

// Gradient buffers reduce what is reported: not before it is computed.
TEST(HeldWeightGrads, AreReportedWhenTheyAreComputed) {
  auto queue = WeightGradQueue::for_cover();
  Parameter parameter({.name = "weight"}, at::zeros({2, 2}));
  parameter.grad.main_grad = at::zeros({2, 2});
  parameter.grad.queue = &queue;
  std::string order;
  const std::function<void()> job = [&] { order += "computed "; };
  const at::Tensor x = leaf(at::ones({1}));
  const at::Tensor y = Hold::apply(x, &queue, &job);
  y.register_hook([&](const at::Tensor&) { EXPECT_FALSE(parameter.grad.incomplete()); });
  x.register_hook([&](const at::Tensor&) {
    EXPECT_TRUE(parameter.grad.incomplete());
    queue.add_report([&] { order += "reported"; });
    EXPECT_EQ(order, "");
  });
  y.backward();
  EXPECT_EQ(order, "computed reported");
  EXPECT_FALSE(parameter.grad.incomplete());
}

TEST(HeldWeightGrads, NeedAPass) {
  auto queue = WeightGradQueue::for_cover();
  testing::expect_error<InternalError>([&] { queue.hold(1, [] {}); }, {"outside a backward pass"});
  WeightGradQueue recording;
  testing::expect_error<InternalError>([&] { recording.hold(1, [] {}); }, {"does not cover"});
}

// Inside an MLP tokens stay in the order of slices, so that the products of both layers read and write whole matrices.
TEST(CommonSlices, AreThoseOfBothProducts) {
  run_tp({2, true, true}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const ColumnParallelLinear up(ParameterScope(set), "up", 6, {{"up", 12}}, false, Init::zeros(), tp);
    const RowParallelLinear down(ParameterScope(set), "down", 12, 6, false, Init::zeros(), tp);
    const auto slices = common_slices(16, up.weight(), down.weight(), tp);
    ASSERT_TRUE(slices);
    EXPECT_EQ(slices->count(), 4);
    EXPECT_EQ(slices->tokens(), 16);
    EXPECT_FALSE(common_slices(2, up.weight(), down.weight(), tp)) << "one row per rank";
    TensorParallel plain = tp;
    plain.overlap = false;
    EXPECT_FALSE(common_slices(16, up.weight(), down.weight(), plain));
    // The output of one product is the input of the other, in any order that both know.
    const at::Tensor x = random_tensor({16, 6}, 1);
    load(set, {{"up.weight", random_tensor({12, 6}, 2)}, {"down.weight", random_tensor({6, 12}, 3)}});
    const at::NoGradGuard no_grad;
    const at::Tensor whole = up.forward(between_blocks(x, tp)),
                     sliced = up.forward(between_blocks(x, tp), true, slices);
    expect_close(sliced, slices->in_slice_order(whole), "output in the order of slices");
    expect_close(down.forward(sliced, {}, {}, slices), down.forward(whole), "sum of both");
  });
}

}  // namespace
}  // namespace megalith::nn
