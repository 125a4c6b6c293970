#include "megalith/nn/parameter/parameter.h"

#include <type_traits>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

TEST(ParameterScope, NamesParametersByTheirPlace) {
  ParameterSet set(at::kBFloat16, at::kCPU);
  const ParameterScope layer = ParameterScope(set).child("layers").child("3");
  Parameter& weight = layer.child("mlp_norm").add({.name = "weight"}, {4});
  Parameter& bias = ParameterScope(set).add({.name = "bias"}, {2, 3});
  EXPECT_EQ(weight.spec.name, "layers.3.mlp_norm.weight");
  EXPECT_EQ(weight.spec.parts[0].name, "layers.3.mlp_norm.weight");
  EXPECT_EQ(bias.spec.name, "bias");
  EXPECT_EQ(set.find("bias"), &bias);
  EXPECT_EQ(set.find("layers.3.mlp_norm.weight"), &weight);
  EXPECT_EQ(set.find("layers.3"), nullptr);
  EXPECT_EQ(set.numel(), 10);
  EXPECT_EQ(weight.value.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(weight.value.is_leaf() && weight.value.requires_grad());
}

TEST(Parameter, DescribesTensorsOfItsShapeAsItself) {
  ParameterSet set(at::kFloat, at::kCPU);
  ParameterSpec spec{.name = "qkv"};
  spec.parts = {{"q", {4, 2}, {2, 0}, {2, 2}, 0}, {"k", {2, 2}, {1, 0}, {1, 2}, 2}};
  const Parameter& parameter = ParameterScope(set).add(std::move(spec), {3, 2});
  const at::Tensor moment = at::arange(6).view({3, 2});
  const auto parts = parameter.sharded(moment);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].name, "k");
  EXPECT_EQ(parts[1].offset, (std::vector<int64_t>{1, 0}));
  expect_identical(parts[0].local, at::arange(4).view({2, 2}), "rows of q");
  expect_identical(parts[1].local, at::tensor({4, 5}, at::kLong).view({1, 2}), "row of k");
  EXPECT_EQ(parts[1].local.data_ptr(), moment[2].data_ptr());
  expect_contains(message_of<InternalError>([&] { parameter.sharded(at::zeros({2, 3})); }), "qkv");
}

// The declaration of a parameter never changes: optimizer, checkpoints and files rely on it.
static_assert(std::is_const_v<decltype(Parameter::spec)>);

TEST(Parameter, BuffersAreNotTrainedAndStayInFp32) {
  ParameterSet set(at::kBFloat16, at::kCPU);
  const ParameterScope scope(set);
  const Parameter& buffer = scope.add({.name = "bias", .role = ParameterRole::kBuffer}, {4});
  EXPECT_FALSE(buffer.value.requires_grad());
  EXPECT_EQ(buffer.value.scalar_type(), at::kFloat);
  const Parameter& adapter = scope.add({.name = "a", .role = ParameterRole::kAdapter, .dtype = at::kFloat}, {4});
  EXPECT_TRUE(adapter.value.requires_grad());
  EXPECT_EQ(adapter.value.scalar_type(), at::kFloat);
}

TEST(ParameterSpec, BothCopiesOfATiedEmbeddingAreTied) {
  EXPECT_TRUE(ParameterSpec{.role = ParameterRole::kTied}.tied_over_stages());
  EXPECT_TRUE(ParameterSpec{.role = ParameterRole::kTiedCopy}.tied_over_stages());
  for (const auto role : {ParameterRole::kWeight, ParameterRole::kAdapter, ParameterRole::kBuffer})
    EXPECT_FALSE(ParameterSpec{.role = role}.tied_over_stages());
}

// Work is left for later where there is a queue, it records, and main_grad will hold the result.
TEST(GradientSlot, DefersWhileItsQueueRecords) {
  WeightGradQueue queue;
  GradientSlot slot;
  int done = 0;
  const auto work = [&] {
    ++done;
    return at::ones({1});
  };
  slot.queue = &queue;
  EXPECT_TRUE(slot.now_or_later(work).defined());
  {
    const WeightGradQueue::Recording recording(queue);
    EXPECT_FALSE(slot.defers()) << "there is no main_grad";
    slot.main_grad = at::zeros({1});
    EXPECT_TRUE(slot.defers());
    EXPECT_FALSE(slot.now_or_later(work).defined());
    EXPECT_EQ(done, 1);
  }
  EXPECT_FALSE(slot.defers());
  queue.run_oldest();
  EXPECT_EQ(done, 2);
}

// Every rank computes the gradient of a replicated weight for itself. Kernels that each rank chose by time would let
// the copies drift apart, unless the gradients are summed over the ranks (sequence parallelism).
TEST(Parameter, ReplicatedWeightsAreMultipliedByTheSameKernelsOnEveryRank) {
  for (const int tp : {1, 2})
    for (const bool sequence_parallel : {false, true})
      testing::run_ranks(tp, [&](const testing::Rank& r) {
        ParameterSet set(at::kFloat, at::kCPU);
        const TensorParallel parallel{r.world.world(), sequence_parallel};
        const ReplicatedLinear whole(ParameterScope(set), "down", 4, {{"down", 6}}, /*bias=*/false, {}, parallel);
        const ColumnParallelLinear column(ParameterScope(set), "up", 4, {{"up", 6}}, /*bias=*/false, {}, parallel);
        const bool fixed = tp == 2 && !sequence_parallel;
        EXPECT_EQ(set.find("down.weight")->spec.kernel_choice(),
                  fixed ? ops::KernelChoice::kFixed : ops::KernelChoice::kByTime);
        EXPECT_EQ(set.find("up.weight")->spec.kernel_choice(), ops::KernelChoice::kByTime);
      });
}

TEST(Parameter, ItsProductsUseThePlansOfItsSet) {
  class CountingPlans final : public ops::GemmPlans {
   public:
    bool run(const at::Tensor&, const at::Tensor&, const at::Tensor&, const ops::Addends&, double, double,
             ops::KernelChoice) override {
      ++asked;
      return true;
    }
    int asked = 0;
  } plans;
  ParameterSet set(at::kFloat, at::kCPU);
  Parameter& weight = ParameterScope(set).add({.name = "w"}, {6, 4});
  EXPECT_EQ(weight.kernels().plans, nullptr) << "a set on the CPU keeps none";
  weight.plans = &plans;
  weight.grad.main_grad = at::zeros({6, 4});
  weight.add_weight_grad(at::ones({3, 6}), at::ones({3, 4}));
  EXPECT_EQ(plans.asked, 1);
}

TEST(ParameterSet, OnMetaAllocatesNothing) {
  ParameterSet set(at::kFloat, at::kMeta);
  run_tp({1, false}, [&](const TensorParallel& tp) {
    const int64_t huge = int64_t{1} << 30;
    const ColumnParallelLinear layer(ParameterScope(set), "up", huge, {{"up", huge}}, false, Init::normal(1), tp);
    EXPECT_EQ(set.numel(), huge * huge);
  });
}

}  // namespace
}  // namespace megalith::nn
