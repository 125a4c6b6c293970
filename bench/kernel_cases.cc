// An Operation states the same computation twice, with our kernel and with ATen's operations, and the bytes that must
// move. cases_of() makes a forward and a backward case of it; the error of both is checked once, in forward's, against
// the reference in fp32.
#include "bench/kernel_cases.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>

#include "megalith/ops/moe/permute.h"
#include "megalith/ops/moe/top_experts.h"
#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/dropout.h"
#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"

namespace megalith::bench {

namespace {

using at::Tensor;
using Function = std::function<Tensors(const Tensors&)>;

// An operation with a gradient, and the same with ATen's own operations.
struct Operation {
  std::string kernel;
  std::vector<int64_t> sizes;
  Tensors inputs;
  Function ours, reference;
  double forward_bytes, backward_bytes;
};

// Returns copies that take gradients; `wide` makes them fp32 for the reference. Integers stay as they are.
Tensors leaves_of(const Tensors& inputs, bool wide) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    const Tensor leaf = wide && input.is_floating_point() ? input.detach().to(at::kFloat) : input.detach();
    leaves.push_back(input.is_floating_point() ? leaf.clone().requires_grad_() : leaf);
  }
  return leaves;
}
// Returns the tensors that take part in autograd; the others are indices.
Tensors differentiable(const Tensors& all) {
  Tensors some;
  std::ranges::copy_if(all, std::back_inserter(some), [](const Tensor& t) { return t.requires_grad(); });
  return some;
}

// Returns the gradients, then the outputs.
Tensors run_both(const Function& f, const Tensors& inputs, const Tensors& slopes, bool wide) {
  const Tensors leaves = leaves_of(inputs, wide), outputs = differentiable(f(leaves));
  Tensors grads;
  for (size_t i = 0; i < outputs.size(); ++i) grads.push_back(slopes[i].to(outputs[i].scalar_type()));
  Tensors results = torch::autograd::grad(outputs, differentiable(leaves), grads);
  for (const Tensor& output : outputs) results.push_back(output.detach());
  return results;
}

// The state that a backward is timed with. The graph is built again before each run, because some operations consume
// theirs.
struct Graph {
  Tensors leaves, outputs, slopes;
};

// Slopes are the gradients of the outputs: random, so that no error cancels in a sum.
std::vector<KernelCase> cases_of(const Operation& op) {
  auto graph = std::make_shared<Graph>();
  graph->leaves = leaves_of(op.inputs, false);
  {
    const at::NoGradGuard no_grad;
    for (const Tensor& output : op.ours(graph->leaves))
      graph->slopes.push_back(random_values(output.sizes(), output.scalar_type()));
  }
  const auto error = [op, graph] {
    const Tensors ours = run_both(op.ours, op.inputs, graph->slopes, false);
    const Tensors exact = run_both(op.reference, op.inputs, graph->slopes, true);
    double worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, relative_error(ours[i], exact[i]));
    return worst;
  };
  KernelCase forward{op.kernel, "forward", op.sizes, op.forward_bytes};
  forward.run = [op, graph] {
    const at::NoGradGuard no_grad;
    op.ours(graph->leaves);
  };
  forward.error = error;
  KernelCase backward{op.kernel, "backward", op.sizes, op.backward_bytes};
  backward.prepare = [op, graph] { graph->outputs = differentiable(op.ours(graph->leaves)); };
  backward.run = [graph] {
    torch::autograd::grad(graph->outputs, differentiable(graph->leaves), graph->slopes);
    graph->outputs.clear();
  };
  backward.error = [] { return 0.0; };  // forward's check covers both
  return {forward, backward};
}

double matrix(int64_t rows, int64_t columns) { return static_cast<double>(rows * columns) * 2; }  // bytes of bf16

// Forward reads x and writes y; backward reads x and dy and writes dx. Weights and statistics are negligible.
Operation rms_norm(int64_t h) {
  const double x = matrix(kTokens, h);
  return {"rms_norm",
          {kTokens, h},
          {random_values({kTokens, h}), random_values({h})},
          [](const Tensors& in) {
            return Tensors{ops::norm(in[0], {ops::NormKind::kRms, in[1], {}, 1e-5})};
          },
          [h](const Tensors& in) { return Tensors{at::rms_norm(in[0], {h}, in[1], 1e-5)}; },
          2 * x,
          3 * x};
}

// Forward reads two tensors and writes the sum and its norm; backward reads both gradients and the sum, and writes one
// gradient for both inputs.
Operation add_rms_norm(int64_t h) {
  const double x = matrix(kTokens, h);
  return {"add_rms_norm",
          {kTokens, h},
          {random_values({kTokens, h}), random_values({kTokens, h}), random_values({h})},
          [](const Tensors& in) {
            const auto [sum, y] = ops::add_norm(in[0], in[1], {ops::NormKind::kRms, in[2], {}, 1e-5});
            return Tensors{sum, y};
          },
          [h](const Tensors& in) {
            const Tensor sum = in[0] + in[1];
            return Tensors{sum, at::rms_norm(sum, {h}, in[2], 1e-5)};
          },
          4 * x,
          4 * x};
}

// GPT-2's width, with biases.
Operation layer_norm() {
  const int64_t t = 65536, h = 768;
  return {"layer_norm",
          {t, h},
          {random_values({t, h}), random_values({h}), random_values({h})},
          [](const Tensors& in) {
            return Tensors{ops::norm(in[0], {ops::NormKind::kLayer, in[1], in[2], 1e-5})};
          },
          [](const Tensors& in) { return Tensors{at::layer_norm(in[0], {h}, in[1], in[2], 1e-5)}; },
          2 * matrix(t, h),
          3 * matrix(t, h)};
}

// Rotates pairs of channels, one from each half: the rotary embedding with ATen's operations.
Tensor turned(const Tensor& x, const ops::RopeAngles& angles) {  // [t, n, d]
  const int64_t half = x.size(2) / 2;
  const Tensor low = x.narrow(2, 0, half), high = x.narrow(2, half, half);
  const Tensor cos = angles.cos.unsqueeze(1), sin = angles.sin.unsqueeze(1);
  return at::cat({low * cos - high * sin, high * cos + low * sin}, 2);
}

// Splits heads of query, key and value, normalizes heads if requested, and rotates queries and keys.
Operation rope(int64_t n, int64_t g, int64_t d, bool norms) {
  const ops::RopeAngles angles =
      ops::rope_angles({.rotary_dim = d}, ops::SequenceLayout::dense(4, kTokens / 4), at::kCUDA);
  const auto reference = [=](const Tensors& in) {
    const Tensor heads = in[0].view({kTokens, n + 2 * g, d});
    const auto normal = [&](const Tensor& x, const Tensor& w) { return norms ? at::rms_norm(x, {d}, w, 1e-6) : x; };
    return Tensors{turned(normal(heads.narrow(1, 0, n), in[1]), angles),
                   turned(normal(heads.narrow(1, n, g), in[2]), angles), heads.narrow(1, n + g, g).clone()};
  };
  const auto ours = [=](const Tensors& in) {
    const ops::NormWeights q{ops::NormKind::kRms, in[1], {}, 1e-6}, k{ops::NormKind::kRms, in[2], {}, 1e-6};
    const auto [a, b, c] = ops::split_qkv(in[0], {n, g, d}, angles, norms ? &q : nullptr, norms ? &k : nullptr);
    return Tensors{a, b, c};
  };
  const double x = matrix(kTokens, (n + 2 * g) * d);
  Operation op{norms ? "rope_norm" : "rope",
               {kTokens, n, g, d},
               {random_values({kTokens, (n + 2 * g) * d})},
               ours,
               reference,
               2 * x,
               (norms ? 3 : 2) * x};
  const Tensor weight = random_values({d});
  op.inputs.push_back(norms ? weight : weight.to(at::kLong));  // integers have no gradient: without norms it is unused
  op.inputs.push_back(op.inputs[1]);
  return op;
}

// The input [rows, 2f] holds gate and value side by side: forward moves 2 + 1 matrices of [rows, f], backward 3 + 2.
Operation swiglu(int64_t rows, int64_t f, bool weighted) {
  const double out = matrix(rows, f);
  Operation op{
      weighted ? "weighted_swiglu" : "swiglu", {rows, f}, {random_values({rows, 2 * f})}, {}, {}, 3 * out, 5 * out};
  if (weighted) op.inputs.push_back(at::rand({rows}, at::TensorOptions(at::kCUDA)));
  op.ours = [weighted](const Tensors& in) {
    return Tensors{ops::gated_activation(in[0], ops::Activation::kSilu, weighted ? in[1] : Tensor())};
  };
  op.reference = [weighted, f](const Tensors& in) {
    const Tensor y = at::silu(in[0].narrow(1, 0, f)) * in[0].narrow(1, f, f);
    return Tensors{weighted ? y * in[1].unsqueeze(1) : y};
  };
  return op;
}

// Forward reads and writes x; backward reads x and dy and writes dx.
Operation bias_gelu() {
  const int64_t t = 65536, f = 3072;
  return {"bias_gelu",
          {t, f},
          {random_values({t, f}), random_values({f})},
          [](const Tensors& in) { return Tensors{ops::bias_activation(in[0], in[1], ops::Activation::kGeluTanh)}; },
          [](const Tensors& in) { return Tensors{at::gelu(in[0] + in[1], "tanh")}; },
          2 * matrix(t, f),
          3 * matrix(t, f)};
}

// Returns a map that copies each token for `k` experts, in random order.
ops::RowMap expert_rows(int64_t k) {
  const Tensor order = at::randperm(kTokens * k, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  Tensor row = at::empty_like(order);
  row.scatter_(0, order, at::arange(kTokens * k, order.options()));
  return {order.div(k, "floor"), row.view({kTokens, k}), true};
}

// Dispatch: every token is copied to the rows of its k experts. Backward sums the copies.
Operation copy_rows(int64_t k, int64_t h) {
  const ops::RowMap map = expert_rows(k);
  const double x = matrix(kTokens, h), rows = matrix(kTokens * k, h);
  return {"copy_rows",
          {kTokens, k, h},
          {random_values({kTokens, h})},
          [map](const Tensors& in) { return Tensors{ops::copy_rows(in[0], map)}; },
          [map](const Tensors& in) { return Tensors{in[0].index_select(0, map.token)}; },
          x + rows,
          x + rows};
}

// Combine: the weighted sum of a token's k rows. Backward needs the rows again for the gradient of the weights.
Operation sum_rows(int64_t k, int64_t h) {
  const ops::RowMap map = expert_rows(k);
  const double y = matrix(kTokens, h), rows = matrix(kTokens * k, h);
  return {"sum_rows",
          {kTokens, k, h},
          {random_values({kTokens * k, h}), at::rand({kTokens, k}, at::TensorOptions(at::kCUDA))},
          [map](const Tensors& in) { return Tensors{ops::sum_rows(in[0], in[1], map)}; },
          [map, k, h](const Tensors& in) {
            const Tensor copies = in[0].index_select(0, map.row.flatten()).view({kTokens, k, h});
            return Tensors{(copies * in[1].unsqueeze(2)).sum(1)};
          },
          rows + y,
          2 * rows + y};
}

// Logits in fp32; for each choice an id of 8 bytes and a weight of 4.
Operation top_experts(int64_t experts, int64_t k) {
  const ops::ExpertChoice choice{.topk = k};
  const double logits = static_cast<double>(kTokens * experts) * 4, chosen = static_cast<double>(kTokens * k) * 12;
  return {"top_experts",
          {kTokens, experts, k},
          {random_values({kTokens, experts}, at::kFloat)},
          [choice](const Tensors& in) { return Tensors{ops::top_experts(in[0], choice).weights}; },
          [k](const Tensors& in) {
            const Tensor places = ops::largest_places(in[0].detach(), k);
            return Tensors{in[0].gather(1, places).softmax(-1)};
          },
          logits + chosen,
          2 * logits + chosen};
}

// The mask depends on the state of the generator only, so both forms start from the same state.
Operation dropout(int64_t h, bool added) {
  const double x = matrix(kTokens, h);
  at::Generator generator = at::detail::getCUDAHooks().getDefaultGenerator(0);
  const Tensor state = generator.get_state();
  const auto ours = [=](const Tensors& in) mutable {
    generator.set_state(state);
    return Tensors{added ? ops::dropout_add(in[0], in[1], 0.1, generator) : ops::dropout(in[0], 0.1, generator)};
  };
  const auto reference = [=](const Tensors& in) mutable {
    generator.set_state(state);
    const Tensor mask = ops::dropout(at::ones_like(in[0], at::kBFloat16), 0.1, generator).ne(0);
    const Tensor y = in[0] * mask / 0.9;
    return Tensors{added ? y + in[1] : y};
  };
  Tensors inputs{random_values({kTokens, h})};
  if (added) inputs.push_back(random_values({kTokens, h}));
  return {added ? "dropout_add" : "dropout", {kTokens, h}, inputs, ours, reference, (added ? 3 : 2) * x, 2 * x};
}

}  // namespace

// |a - b|| / ||b||: robust against single elements that are nearly zero.
double relative_error(const Tensor& actual, const Tensor& expected) {
  const Tensor exact = expected.to(at::kFloat);
  return ((actual.to(at::kFloat) - exact).norm() / exact.norm().clamp_min(1e-20)).item<double>();
}

// Sizes of Llama 3 (1B, 8B), Qwen3 MoE and GPT-2. Cases are made one at a time, so that their tensors are freed
// in between.
std::vector<MakeCases> differentiable_cases() {
  return {[] { return cases_of(rms_norm(2048)); },
          [] { return cases_of(rms_norm(4096)); },
          [] { return cases_of(add_rms_norm(2048)); },
          [] { return cases_of(add_rms_norm(4096)); },
          [] { return cases_of(layer_norm()); },
          [] { return cases_of(rope(32, 8, 64, false)); },
          [] { return cases_of(rope(32, 8, 128, false)); },
          [] { return cases_of(rope(32, 4, 128, true)); },
          [] { return cases_of(swiglu(kTokens, 8192, false)); },
          [] { return cases_of(swiglu(kTokens, 14336, false)); },
          [] { return cases_of(swiglu(8 * kTokens, 768, true)); },
          [] { return cases_of(bias_gelu()); },
          [] { return cases_of(copy_rows(8, 2048)); },
          [] { return cases_of(sum_rows(8, 2048)); },
          [] { return cases_of(top_experts(64, 8)); },
          [] { return cases_of(dropout(4096, false)); },
          [] { return cases_of(dropout(4096, true)); }};
}

Tensor random_values(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).mul_(0.5).to(dtype);
}

}  // namespace megalith::bench
