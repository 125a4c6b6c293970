// Random numbers in CUDA graphs: replays draw, bit for bit, what the same kernels draw when they are launched.
#include "megalith/parallel/recorded_draws.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "megalith/base/error.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/attention/attention.h"
#include "megalith/ops/norm_rope/dropout.h"
#include "megalith/train/device/device_graph.h"
#include "tests/cuda/device_case.h"
#include "tests/support/close.h"

namespace megalith::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using parallel::RngTracker;

class OnCudaRecordedDraws : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != TestDevice::kCuda) GTEST_SKIP() << "no GPU";
    rng_.emplace(device_);
    rng_->seed(layout::seeds_for_base(42, 0, 0, 0));
  }

  const at::Device device_{at::kCUDA, 0};
  std::optional<RngTracker> rng_;
};

// Something to compute twice: results and gradients, in tensors of their own.
using Pass = std::function<Tensors()>;

// Runs the pass four times, by launches; then again from the same state, recorded once and replayed, with one more pass
// by launches in between.
void expect_replays_draw_the_same(RngTracker& rng, const Pass& pass) {
  pass();  // loads kernels
  const std::string begin = rng.save();
  std::vector<Tensors> expected;
  for (int i = 0; i < 4; ++i)
    for (const Tensor& each : expected.emplace_back(pass())) ASSERT_TRUE(each.defined());
  EXPECT_FALSE(at::equal(expected[0][0], expected[1][0]));
  const std::string end = rng.save();
  rng.restore(begin);

  const parallel::RecordedDraws draws(rng);
  const auto pool = train::make_device_graph(nullptr), graph = train::make_device_graph(pool.get());
  parallel::RecordedDraws::Counts drawn;
  Tensors recorded;
  graph->record([&] { drawn = draws.record([&] { recorded = pass(); }); });
  EXPECT_EQ(rng.save(), begin);  // nothing has run
  for (size_t i = 0; i < expected.size(); ++i) {
    Tensors found;
    if (i == 2) {
      found = pass();
    } else {
      draws.replay(drawn);
      graph->replay();
      found = recorded;
    }
    ASSERT_EQ(found.size(), expected[i].size());
    for (size_t j = 0; j < found.size(); ++j)
      EXPECT_TRUE(at::equal(found[j], expected[i][j])) << "pass " << i << ", result " << j;
  }
  EXPECT_EQ(rng.save(), end);
}

// Kernels of ours and of libtorch, of several streams.
TEST_F(OnCudaRecordedDraws, OfMasksAndNoise) {
  const train::OwnStream stream(device_);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::ones({300, 301}, at::TensorOptions(device_).dtype(dtype)).requires_grad_();
    expect_replays_draw_the_same(*rng_, [&] {
      Tensor y = ops::dropout(x, 0.3, rng_->generator());
      y = y * at::empty_like(y).uniform_(0.5, 1.5, rng_->generator());
      {
        const auto fork = rng_->fork();
        y = ops::dropout_add(y, x, 0.2, rng_->generator());
        y = y * at::empty_like(y).bernoulli_(0.9, rng_->generator());
      }
      y = ops::dropout(y, 0.1, rng_->generator());
      return Tensors{y.detach(), torch::autograd::grad({y.sum()}, {x})[0]};
    });
  }
}

TEST_F(OnCudaRecordedDraws, OfRecomputedRegions) {
  const train::OwnStream stream(device_);
  const Tensor x = at::ones({300, 301}, at::TensorOptions(device_).dtype(at::kFloat)).requires_grad_();
  const auto region = [&](const nn::TensorList& inputs) {
    const Tensor y = ops::dropout(inputs[0], 0.3, rng_->generator());
    const auto fork = rng_->fork();
    return ops::dropout_add(y * y, y, 0.2, rng_->generator());
  };
  expect_replays_draw_the_same(*rng_, [&] {
    Tensor y = nn::recompute(region, {x}, &*rng_);
    y = nn::recompute(region, {y}, &*rng_);
    return Tensors{y.detach(), torch::autograd::grad({y.sum()}, {x})[0]};
  });
}

// Flash-2 (bf16) adds up gradients in any order, so only its results are compared to the last bit; the kernel for fp32
// has an order.
TEST_F(OnCudaRecordedDraws, OfAttention) {
  const train::OwnStream stream(device_);
  const auto lengths = ops::SequenceLayout::dense(2, 128);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions(device_).dtype(dtype);
    const Tensor q = at::randn({256, 4, 64}, options).requires_grad_(), k = at::randn({256, 2, 64}, options),
                 v = at::randn({256, 2, 64}, options);
    Tensor gradient;  // written by the latest launches, or by the graph
    const auto pass = [&] {
      const auto fork = rng_->fork();
      const ops::AttentionOptions how{.dropout = 0.1, .generator = rng_->generator()};
      const Tensor y = ops::attention(q, k, v, lengths, lengths, how);
      gradient = torch::autograd::grad({y.sum()}, {q})[0];
      return dtype == at::kFloat ? Tensors{y.detach(), gradient} : Tensors{y.detach()};
    };
    expect_replays_draw_the_same(*rng_, pass);

    // The gradients of the last replay are those of the same draws.
    const std::string begin = rng_->save();
    pass();
    const Tensor expected = gradient.clone();
    rng_->restore(begin);
    const parallel::RecordedDraws draws(*rng_);
    const auto graph = train::make_device_graph(nullptr);
    parallel::RecordedDraws::Counts drawn;
    graph->record([&] { drawn = draws.record([&] { pass(); }); });
    draws.replay(drawn);
    graph->replay();
    EXPECT_LE((gradient - expected).abs().max().item<double>(), 1e-2 * expected.abs().max().item<double>());
  }
}

// After a failure the generator draws on as if nothing had been tried.
TEST_F(OnCudaRecordedDraws, AFailedRecordingLeavesNoTrace) {
  const train::OwnStream stream(device_);
  const Tensor x = at::ones({1000}, at::TensorOptions(device_).dtype(at::kFloat));
  const auto pass = [&] { return ops::dropout(x, 0.3, rng_->generator()); };
  pass();
  const std::string begin = rng_->save();
  const Tensor expected = pass();
  rng_->restore(begin);
  const parallel::RecordedDraws draws(*rng_);
  const auto fail = [&](const std::function<void()>& failure) {
    const auto graph = train::make_device_graph(nullptr);
    EXPECT_ANY_THROW(graph->record([&] {
      draws.record([&] {
        const auto fork = rng_->fork();
        pass();
        failure();
      });
    }));
    EXPECT_EQ(rng_->save(), begin);
    EXPECT_TRUE(at::equal(pass(), expected));
    rng_->restore(begin);
  };
  fail([] { throw DataError("broken"); });
  fail([&] { x.sum().item<float>(); });  // waits for the device, which ends the recording
}

}  // namespace
}  // namespace megalith::testing
