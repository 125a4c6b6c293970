// Sharded layers against plain ATen on the full weights.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "megalith/layout/rng_seeds.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/parallel/rng_tracker.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::nn {

using testing::expect_close;
using testing::expect_contains;
using testing::expect_identical;

// Normally distributed, the same for the same seed.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, double scale = 1) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat) * scale;
}

// Small whole numbers: sums and products of them are exact in fp32 (and in bf16 while small), in any order.
inline at::Tensor whole_numbers(at::IntArrayRef shape, uint64_t seed, int64_t largest = 3) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(-largest, largest + 1, shape, generator, at::kFloat);
}

// Returns token ids below `vocab`, the same for the same seed.
inline at::Tensor random_ids(int64_t count, int64_t vocab, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, vocab, {count}, generator, at::kLong);
}

// ---- Layouts ------------------------------------------------------------------------------------------------------

// A tensor-parallel layout.
struct Layout {
  int tp;
  bool sequence_parallel;
  bool overlap = false;
  std::string name() const {
    return "tp" + std::to_string(tp) + (sequence_parallel ? "_sp" : "") + (overlap ? "_overlap" : "");
  }
};

// Returns every layout up to 4 ranks: without sequence parallelism, with it, and with its collectives in slices.
inline const std::vector<Layout>& all_layouts() {
  static const std::vector<Layout> layouts{{1, false}, {1, true}, {2, false},      {2, true},
                                           {4, false}, {4, true}, {2, true, true}, {4, true, true}};
  return layouts;
}

// Runs the body on every rank of a tensor-parallel group.
inline void run_tp(const Layout& layout, const std::function<void(const TensorParallel&)>& body) {
  SCOPED_TRACE(layout.name());
  testing::run_ranks(layout.tp, [&](const testing::Rank& r) {
    SCOPED_TRACE(layout.name() + " rank " + std::to_string(r.rank));
    body({.group = r.world.world(), .sequence_parallel = layout.sequence_parallel, .overlap = layout.overlap});
  });
}
inline void run_all_layouts(const std::function<void(const TensorParallel&)>& body) {
  for (const Layout& layout : all_layouts()) run_tp(layout, body);
}

// The part of a [t, …] tensor that lies on a rank between blocks.
inline at::Tensor between_blocks(const at::Tensor& whole, const TensorParallel& tp) {
  if (!tp.splits_tokens()) return whole;
  const auto [first, count] = tp.share(whole.size(0));
  return whole.narrow(0, first, count);
}
// This rank's share of the columns.
inline at::Tensor own_columns(const at::Tensor& whole, const TensorParallel& tp) {
  const auto [first, count] = tp.share(whole.size(-1));
  return whole.narrow(-1, first, count);
}

// Returns a copy that collects a gradient.
inline at::Tensor leaf(const at::Tensor& value) { return value.detach().clone().requires_grad_(); }

// ---- Weights and their gradients ----------------------------------------------------------------------------------

using FullTensors = std::map<std::string, at::Tensor>;  // by the names of the parts

// The rectangle of the full tensor that a rank holds.
inline at::Tensor rectangle(const at::Tensor& full, const parallel::ShardedTensor& part) {
  at::Tensor own = full;
  EXPECT_EQ(full.sizes(), at::IntArrayRef(part.global_shape)) << part.name;
  for (int64_t d = 0; d < full.dim(); ++d) own = own.narrow(d, part.offset[static_cast<size_t>(d)], part.local.size(d));
  return own;
}

// Copies this rank's rectangles of the full tensors into the parameters; every tensor has to be used.
inline void load(const ParameterSet& set, const FullTensors& full) {
  const at::NoGradGuard no_grad;
  size_t used = 0;
  for (const auto& parameter : set.all()) {
    parameter->value.zero_();
    for (const auto& part : parameter->sharded()) {
      ASSERT_TRUE(full.contains(part.name)) << part.name;
      part.local.copy_(rectangle(full.at(part.name), part));
      ++used;
    }
  }
  EXPECT_EQ(used, full.size());
}

// main_grad with garbage in it that the first write has to overwrite.
inline void attach_main_grads(const ParameterSet& set) {
  for (const auto& parameter : set.all()) {
    parameter->grad.main_grad = at::full(parameter->value.sizes(), std::numeric_limits<float>::quiet_NaN(), at::kFloat);
    parameter->grad.stale = true;
  }
}

// Returns the gradient: value.grad(), or main_grad when layers wrote there.
inline at::Tensor grad_of(const Parameter& parameter) {
  return parameter.value.grad().defined() ? parameter.value.grad() : parameter.grad.main_grad;
}

// Every parameter's gradient is its rectangle of the full one, and zero in the padding.
inline void expect_grads(const ParameterSet& set, const FullTensors& full_grads, const TensorParallel& tp,
                         double tolerance = testing::kClose) {
  for (const auto& parameter : set.all()) {
    at::Tensor grad = grad_of(*parameter);
    ASSERT_TRUE(grad.defined()) << parameter->spec.name << " has no gradient";
    grad = grad.clone();
    if (parameter->spec.partial_grad_over_tp) tp.group.all_reduce(grad);
    for (const auto& part : parameter->sharded(grad)) {
      const at::Tensor& full = full_grads.at(part.name);
      expect_close(part.local, rectangle(full, part), "gradient of " + part.name, 0,
                   tolerance * full.abs().max().item<double>());
      part.local.zero_();
    }
    EXPECT_TRUE(grad.eq(0).all().item<bool>()) << "gradient in the padding of " << parameter->spec.name;
  }
}

// ---- The same thing in full ---------------------------------------------------------------------------------------

// y = f(x, weights) in fp64, and the gradients of Σ dy·y.
struct Expected {
  at::Tensor y, dx;
  FullTensors grads;
};
inline Expected evaluate(const std::function<at::Tensor(const at::Tensor& x, const FullTensors& weights)>& f,
                         const at::Tensor& x, const FullTensors& weights, const at::Tensor& dy) {
  FullTensors leaves;
  for (const auto& [name, value] : weights) leaves[name] = leaf(value.to(at::kDouble));
  const at::Tensor input = x.is_floating_point() ? leaf(x.to(at::kDouble)) : x;
  Expected out;
  out.y = f(input, leaves);
  out.y.backward(dy.to(at::kDouble));
  out.dx = input.grad();
  for (const auto& [name, value] : leaves)
    out.grads[name] = value.grad().defined() ? value.grad() : at::zeros_like(value);
  return out;
}

// ---- Random streams -----------------------------------------------------------------------------------------------

// Seeds the streams of a rank as a run does.
inline void seed_streams(parallel::RngTracker& rng, int64_t seed, const TensorParallel& tp) {
  rng.seed(layout::seeds_for_base(seed, tp.rank(), 0, tp.rank()));
}

// The message of the E that `body` throws; the test fails when it throws none.
template <typename E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// A layer on the residual stream against its definition, in every layout: output and all gradients.
struct LayerCase {
  int64_t tokens, hidden;
  bool residual;  // one is added
  bool main_grads;
  FullTensors weights;
};
// The layer of a rank, made from its parameters: (x, residual or undefined) -> y.
using RankLayer = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& residual)>;
inline void expect_layer(const LayerCase& c,
                         const std::function<at::Tensor(const at::Tensor& x, const FullTensors& weights)>& definition,
                         const std::function<RankLayer(ParameterSet& set, const TensorParallel& tp)>& make) {
  const at::Tensor x = random_tensor({c.tokens, c.hidden}, 1), dy = random_tensor({c.tokens, c.hidden}, 2);
  const at::Tensor residual = random_tensor({c.tokens, c.hidden}, 3);
  const Expected expected = evaluate(
      [&](const at::Tensor& in, const FullTensors& w) {
        const at::Tensor y = definition(in, w);
        return c.residual ? y + residual : y;
      },
      x, c.weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const RankLayer layer = make(set, tp);
    load(set, c.weights);
    if (c.main_grads) attach_main_grads(set);
    const at::Tensor in = leaf(between_blocks(x, tp));
    const at::Tensor y = layer(in, c.residual ? between_blocks(residual, tp) : at::Tensor());
    expect_close(y, between_blocks(expected.y, tp), "output");
    y.backward(between_blocks(dy, tp));
    expect_close(in.grad(), between_blocks(expected.dx, tp), "gradient of the input", 0,
                 testing::kClose * expected.dx.abs().max().item<double>());
    expect_grads(set, expected.grads, tp);
  });
}

}  // namespace megalith::nn
