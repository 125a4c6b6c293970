// The tower is built from replicated linear layers, and each rank runs it on images of its own, so no block has a
// collective. Rows of images differ from one micro-batch to the next: kernels of the products are not chosen by trial,
// which would try again for every new number of rows.
#include "megalith/nn/vision/vision_tower.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/ops/attention/attention.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

namespace {

// Lists of images whose indices are kept: micro-batches of one step that have images of equal sizes.
constexpr size_t kKnownLists = 4;

NormShape norm_of(const VisionShape& shape, int64_t size) {
  return {.kind = shape.norm, .size = size, .epsilon = shape.norm_epsilon};
}

Norm make_norm(const ParameterScope& scope, const VisionShape& shape, int64_t size, const TensorParallel& tp) {
  return Norm(scope, norm_of(shape, size), /*partial_grad=*/tp.splits_tokens(), tp.rank());
}

ReplicatedLinear make_linear(const ParameterScope& scope, const std::string& name, int64_t in,
                             const std::vector<OutputPart>& out, bool bias, const VisionShape& shape,
                             const TensorParallel& tp) {
  ReplicatedLinear linear(scope, name, in, out, bias, Init::normal(shape.init_std), tp);
  linear.weight().plans = nullptr;
  return linear;
}

bool trains(const Parameter* parameter) {
  return parameter != nullptr && (parameter->value.requires_grad() || parameter->attached.update != nullptr);
}
bool trains(const ReplicatedLinear& linear) { return trains(&linear.weight()) || trains(linear.bias()); }
bool trains(const Norm& norm) { return norm.weights().weight.requires_grad(); }

// act(x W1ᵀ + b1) W2ᵀ + b2 + residual. The output of the activation, as wide as the MLP, is recomputed in backward on
// the CPU, where that costs little (as in nn/mlp.cc).
at::Tensor plain_mlp(const at::Tensor& x, const ReplicatedLinear& up, const ReplicatedLinear& down,
                     ops::Activation activation, const at::Tensor& residual) {
  const at::Tensor before = up.forward_without_bias(x);
  const auto activate = [bias = up.bias(), activation](const at::Tensor& y) {
    return ops::bias_activation(y, bias->value, activation, bias->grad.target());
  };
  if (before.is_cuda()) return down.forward(activate(before), residual);
  return down.forward(activate(before), residual, [activate, kept = before.detach()] {
    const at::NoGradGuard no_grad;
    return activate(kept);
  });
}

}  // namespace

std::vector<OutputPart> vision_up_parts(const VisionShape& shape) {
  if (!shape.gated_mlp) return {{"up", shape.mlp_width}};
  return {{"gate", shape.mlp_width}, {"up", shape.mlp_width}};
}

VisionBlock::VisionBlock(const ParameterScope& scope, const VisionShape& shape, const TensorParallel& tp,
                         const std::vector<OutputPart>& qkv)
    : shape_(shape),
      attention_norm_(make_norm(scope.child("attention_norm"), shape, shape.width, tp)),
      qkv_(make_linear(scope.child("attention"), "qkv", shape.width, qkv, true, shape, tp)),
      proj_(make_linear(scope.child("attention"), "proj", shape.width, {{"proj", shape.width}}, true, shape, tp)),
      mlp_norm_(make_norm(scope.child("mlp_norm"), shape, shape.width, tp)),
      up_(make_linear(scope.child("mlp"), shape.gated_mlp ? "gate_up" : "up", shape.width, vision_up_parts(shape), true,
                      shape, tp)),
      down_(make_linear(scope.child("mlp"), "down", shape.mlp_width, {{"down", shape.width}}, true, shape, tp)),
      plans_(scope.attention_plans()) {}

bool VisionBlock::trains() const {
  return nn::trains(attention_norm_) || nn::trains(qkv_) || nn::trains(proj_) || nn::trains(mlp_norm_) ||
         nn::trains(up_) || nn::trains(down_);
}

at::Tensor VisionBlock::forward(const at::Tensor& x, const ops::RopeAngles& angles,
                                const ops::SequenceLayout& sequences) const {
  const auto [residual, y] = ops::norm_fork(x, attention_norm_.weights());
  at::Tensor projected = qkv_.forward(y);  // [p, 3w]
  auto [q, k, v] = ops::split_qkv(projected, {shape_.heads, shape_.heads, shape_.head_dim()}, angles);
  projected.reset();
  const at::Tensor seen =
      ops::attention(q, k, v, sequences, sequences, {.causal = false, .plans = plans_});  // [p, heads, d]
  const at::Tensor middle = proj_.forward(seen.reshape({seen.size(0), -1}), residual);
  const auto [middle_residual, z] = ops::norm_fork(middle, mlp_norm_.weights());
  if (!shape_.gated_mlp) return plain_mlp(z, up_, down_, shape_.activation, middle_residual);
  return down_.forward(ops::gated_activation(up_.forward(z), shape_.activation), middle_residual);
}

parallel::RngTracker* VisionBlock::random_numbers() const {
  for (const ReplicatedLinear* linear : {&qkv_, &proj_, &up_, &down_})
    if (const auto& update = linear->weight().attached.update; update && update->dropout > 0) return update->rng;
  return nullptr;
}

VisionMerger::VisionMerger(const ParameterScope& scope, const VisionShape& shape, bool norm_merged,
                           const TensorParallel& tp)
    : merged_width_(shape.merged() * shape.width),
      norm_merged_(norm_merged),
      norm_(make_norm(scope.child("norm"), shape, norm_merged ? merged_width_ : shape.width, tp)),
      up_(make_linear(scope, "up", merged_width_, {{"up", merged_width_}}, true, shape, tp)),
      down_(make_linear(scope, "down", merged_width_, {{"down", shape.out_width}}, true, shape, tp)) {}

at::Tensor VisionMerger::forward(const at::Tensor& x) const {
  const at::Tensor merged =
      norm_merged_ ? norm_.forward(x.reshape({-1, merged_width_})) : norm_.forward(x).reshape({-1, merged_width_});
  return plain_mlp(merged, up_, down_, ops::Activation::kGelu, {});
}

bool VisionMerger::trains() const { return nn::trains(norm_) || nn::trains(up_) || nn::trains(down_); }

VisionTower::VisionTower(const ParameterScope& scope, const VisionShape& shape, TensorParallel tp) : shape_(shape) {
  const auto found = problems(shape);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  tp.sequence_parallel = true;  // ranks compute different images, as they hold different tokens with it
  tp.fp8.reset();
  patch_.emplace(
      make_linear(scope, "patch", shape.patch_pixels(), {{"patch", shape.width}}, shape.patch_bias, shape, tp));
  if (shape.positions > 0)
    positions_ = &scope.add({.name = "positions.weight",
                             .init = Init::normal(shape.init_std),
                             .partial_grad_over_tp = tp.splits_tokens(),
                             .replica = tp.rank()},
                            {shape.positions, shape.width});
  for (int64_t i = 0; i < shape.depth; ++i)
    blocks_.push_back(std::make_unique<VisionBlock>(scope.child("blocks").child(std::to_string(i)), shape, tp,
                                                    std::vector<OutputPart>{{"qkv", 3 * shape.width}}));
  for (size_t j = 0; j < shape.deepstack_blocks.size(); ++j)
    deepstack_.push_back(std::make_unique<VisionMerger>(scope.child("deepstack").child(std::to_string(j)), shape,
                                                        /*norm_merged=*/true, tp));
  merger_.emplace(scope.child("merger"), shape, /*norm_merged=*/false, tp);
}

bool VisionTower::trains() const {
  const auto any = [](const auto& parts) {
    return std::ranges::any_of(parts, [](const auto& p) { return p->trains(); });
  };
  return nn::trains(*patch_) || nn::trains(positions_) || merger_->trains() || any(blocks_) || any(deepstack_);
}

VisionTower::IndicesPtr VisionTower::indices_of(const std::vector<ImageGrid>& grids) const {
  for (const Known& known : known_)
    if (known.grids == grids) return known.indices;
  auto made = std::make_shared<VisionIndices>(vision_indices(shape_, grids, patch_->weight().value.device()));
  known_.push_front({grids, made});
  if (known_.size() > kKnownLists) known_.pop_back();
  return made;
}

at::Tensor VisionTower::embed(const at::Tensor& pixels, const VisionIndices& indices) const {
  const at::Tensor& weight = patch_->weight().value;
  at::Tensor in = ops::to_device(pixels, weight.device());
  if (indices.order.defined()) in = in.index_select(0, indices.order);
  at::Tensor x = patch_->forward(in.to(weight.scalar_type()));
  if (positions_ == nullptr) return x;
  // Σ over four entries of the table, in fp32. Backward keeps indices and weights alone.
  at::Tensor sum;
  for (int64_t corner = 0; corner < 4; ++corner) {
    const at::Tensor term = table_rows(*positions_, indices.taps[corner]) * indices.tap_weights[corner].unsqueeze(1);
    sum = sum.defined() ? sum + term : term;
  }
  return x + sum.to(x.scalar_type());
}

VisionRows VisionTower::forward(const at::Tensor& pixels, const std::vector<ImageGrid>& grids, bool recompute) const {
  check<DataError>(
      pixels.dim() == 2 && pixels.size(1) == shape_.patch_pixels() && pixels.size(0) == total_patches(grids),
      "the pixels of {} images are [{}]; their grids have {} patches of {} numbers each", grids.size(),
      fmt::join(pixels.sizes(), ", "), total_patches(grids), shape_.patch_pixels());
  const IndicesPtr indices = indices_of(grids);
  const auto in_order = [&](const at::Tensor& rows) {
    return indices->back.defined() ? rows.index_select(0, indices->back) : rows;
  };
  VisionRows out;
  at::Tensor x = embed(pixels, *indices);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const VisionBlock& block = *blocks_[i];
    const auto number = static_cast<int64_t>(i);
    const bool full = shape_.window == 0 || std::ranges::find(shape_.full_blocks, number) != shape_.full_blocks.end();
    const auto run = [&block, indices, full](const TensorList& kept) {
      return block.forward(kept[0], indices->angles, full ? indices->frames : indices->windows);
    };
    const bool twice = recompute && at::GradMode::is_enabled() && (x.requires_grad() || block.trains());
    x = twice ? nn::recompute(run, {x}, block.random_numbers()) : run({x});
    const auto level = std::ranges::find(shape_.deepstack_blocks, number);
    if (level != shape_.deepstack_blocks.end())
      out.deepstack.push_back(in_order(deepstack_[level - shape_.deepstack_blocks.begin()]->forward(x)));
  }
  out.rows = in_order(merger_->forward(x));
  return out;
}

}  // namespace megalith::nn
