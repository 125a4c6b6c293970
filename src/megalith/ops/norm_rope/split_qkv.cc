// apply_rope and split_qkv of rope.h: argument checks, autograd and dispatch to the kernels.
//
// split_qkv is one autograd function from the fused projection to q, k and v. Forward is one launch for all three
// parts. Backward writes the gradients of the parts straight into one tensor of fused rows, so that the projection gets
// its gradient without a concatenation. It is one launch where split_backward_cuda() can do it; otherwise parts with a
// norm take one launch each and the others one together. Kernels see the parts as pointers with strides: making tensor
// views would cost host time in every layer.
//
//   fused row   | q: n heads | k: g heads | v: g heads |      n + 2g heads of d channels, row by row of tokens
//   q, k, v     [t, n, d]      [t, g, d]    [t, g, d]         contiguous, except where nothing is computed (in_place)
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/norm_rope/rope_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Angles must cover every token and fit the heads; partial rotation uses fewer channels than a head has.
void check_angles(const RopeAngles& angles, int64_t tokens, int64_t head_dim) {
  if (!angles.defined()) return;
  check(angles.cos.dim() == 2 && angles.cos.size(0) == tokens && angles.cos.scalar_type() == at::kFloat &&
            angles.cos.is_contiguous() && angles.sin.is_contiguous() && angles.sin.sizes() == angles.cos.sizes(),
        "rope: {} tokens need fp32 angles [{}, r/2]; they are {}", tokens, tokens, shape_text(angles.cos));
  check(2 * angles.cos.size(1) <= head_dim, "rope: {} rotated channels do not fit into heads of {}",
        2 * angles.cos.size(1), head_dim);
}

Rotation rotation_of(const RopeAngles& angles, bool inverse) {
  if (!angles.defined()) return {};
  return {.cos = angles.cos.const_data_ptr<float>(),
          .sin = angles.sin.const_data_ptr<float>(),
          .half = angles.cos.size(1),
          .interleaved = angles.interleaved,
          .inverse = inverse};
}

HeadsIn heads_in(const Tensor& x) {  // [t, n, d]
  return {x.const_data_ptr(), x.stride(0), x.stride(1)};
}
HeadsOut heads_out(const Tensor& x) { return {x.mutable_data_ptr(), x.stride(0), x.stride(1)}; }

HeadsShape shape_of(const Tensor& x) { return {x.scalar_type(), x.size(0), x.size(2)}; }

// Runs map_heads on the device of `like`, any tensor of the operation.
void run_map(const Tensor& like, const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups) {
  if constexpr (kCudaKernels) {
    if (like.is_cuda()) return map_heads_cuda(shape, rotation, groups, stream_of(like));
  }
  map_heads_cpu(shape, rotation, groups);
}

// Backward of one group with a norm; the workspace on CUDA holds one row of partial sums per block.
void run_map_backward(const Tensor& like, const HeadsShape& shape, const Rotation& rotation,
                      const HeadGroupBackward& group) {
  if constexpr (kCudaKernels) {
    if (like.is_cuda()) {
      const Tensor workspace = floats_for(like, map_heads_backward_workspace_cuda(shape));
      return map_heads_backward_cuda(shape, rotation, group, workspace.mutable_data_ptr<float>(), stream_of(like));
    }
  }
  map_heads_backward_cpu(shape, rotation, group);
}

// Rotates the heads of x [t, n, d] into a new tensor.
Tensor rotate_kernel(const Tensor& x, const RopeAngles& angles, bool inverse) {
  const Tensor in = dense_last(x);
  Tensor out = at::empty(x.sizes(), x.options());
  const std::array group{HeadGroup{.in = heads_in(in), .out = heads_out(out), .heads = x.size(1)}};
  run_map(in, shape_of(in), rotation_of(angles, inverse), group);
  return out;
}

// A rotation is orthogonal: its backward is the inverse rotation of the gradient, and x need not be saved. (A yarn
// factor in cos and sin scales both alike.)
class RopeFunction : public torch::autograd::Function<RopeFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const RopeAngles& angles) {
    save_state(ctx, angles);
    return rotate_kernel(x, angles, /*inverse=*/false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {rotate_kernel(grads[0], saved_state<RopeAngles>(ctx), /*inverse=*/true), {}};
  }
};

// The position of q (0), k (1) or v (2) in a fused row, in heads.
struct Part {
  int64_t first, heads;
};
Part part_of(const QkvHeads& heads, size_t which) {
  const int64_t n = heads.query, g = heads.key_value;
  return which == 0 ? Part{0, n} : Part{which == 1 ? n : n + g, g};
}

// A part of a tensor of fused rows with contiguous columns, without the cost of making a view.
HeadsIn part_in(const Tensor& rows, const QkvHeads& heads, size_t which) {
  const int64_t offset = part_of(heads, which).first * heads.head_dim * rows.element_size();
  return {static_cast<const char*>(rows.const_data_ptr()) + offset, rows.stride(0), heads.head_dim};
}
HeadsOut part_out(const Tensor& rows, const QkvHeads& heads, size_t which) {
  const int64_t offset = part_of(heads, which).first * heads.head_dim * rows.element_size();
  return {static_cast<char*>(rows.mutable_data_ptr()) + offset, rows.stride(0), heads.head_dim};
}
Tensor part_view(const Tensor& rows, const QkvHeads& heads, size_t which) {
  const Part part = part_of(heads, which);
  return rows.narrow(1, part.first * heads.head_dim, part.heads * heads.head_dim)
      .unflatten(1, {part.heads, heads.head_dim});
}

// The norm of each query or key head, as the kernels need it.
struct HeadNorm {
  bool present = false;
  double epsilon = 0;
  bool zero_centered = false;
};
HeadNorm head_norm(const NormWeights* norm) {
  if (norm == nullptr) return {};
  return {.present = true, .epsilon = norm->epsilon, .zero_centered = norm->zero_centered};
}

// Everything about one call except its tensors. Index 0 is q, 1 is k, 2 is v.
struct SplitPlan {
  QkvHeads heads;
  RopeAngles angles;
  std::array<HeadNorm, 3> norms;
  int64_t tokens = 0;
  at::TensorOptions options;  // dtype and device of qkv, and so of its parts and its gradient

  HeadsShape shape() const { return {options.dtype().toScalarType(), tokens, heads.head_dim}; }
};

// Whether the heads can stay in qkv's memory: on CUDA, whose attention reads rows of any stride, if there is neither a
// norm nor a rotation.
bool in_place(const SplitPlan& plan, const Tensor& qkv) {
  return qkv.is_cuda() && !plan.angles.defined() && !plan.norms[0].present && !plan.norms[1].present;
}

// Returns the parts as separate tensors on qkv's memory. They are not views for autograd, which would then add up three
// gradients of the size of qkv.
std::array<Tensor, 3> parts_in_place(const SplitPlan& plan, const Tensor& qkv) {
  const Tensor rows = dense_last(qkv);
  std::array<Tensor, 3> result;
  for (size_t i = 0; i < 3; ++i) {
    const Part part = part_of(plan.heads, i);
    const int64_t d = plan.heads.head_dim;
    result[i] = at::empty({0}, plan.options)
                    .set_(rows.storage(), rows.storage_offset() + part.first * d, {plan.tokens, part.heads, d},
                          {rows.stride(0), d, 1});
  }
  return result;
}

// The weight of a norm as the kernels read it. CUDA kernels read it as it is, in fp32 or in the dtype of the heads, and
// add the shift themselves. The CPU kernels get it in acc, already shifted.
struct KernelWeight {
  Tensor weight;
  bool raw = false;  // in the dtype of the heads
  float shift = 0;
};
KernelWeight kernel_weight(const Tensor& heads, const Tensor& weight, bool zero_centered) {
  const at::ScalarType acc = acc_dtype(heads);
  if (!heads.is_cuda()) return {norm_multiplier(weight, zero_centered, acc)};
  const bool raw = weight.scalar_type() == heads.scalar_type() && weight.is_contiguous();
  return {raw ? weight : norm_multiplier(weight, false, acc), raw, zero_centered ? 1.0F : 0.0F};
}

// Runs forward. `weights` are those of the norms of q and k as stored; undefined where there is no norm.
std::array<Tensor, 3> split_kernel(const SplitPlan& plan, const Tensor& qkv, const std::array<Tensor, 2>& weights) {
  if (in_place(plan, qkv)) return parts_in_place(plan, qkv);
  const Tensor in = dense_last(qkv);
  std::array<Tensor, 3> result;
  std::array<KernelWeight, 2> kernel_weights;
  std::array<HeadGroup, 3> groups;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t count = part_of(plan.heads, i).heads;
    result[i] = at::empty({plan.tokens, count, plan.heads.head_dim}, plan.options);
    groups[i] = {.in = part_in(in, plan.heads, i), .out = heads_out(result[i]), .heads = count, .rotate = i < 2};
    if (!plan.norms[i].present) continue;
    kernel_weights[i] = kernel_weight(in, weights[i], plan.norms[i].zero_centered);
    groups[i].norm_weight = kernel_weights[i].weight.const_data_ptr();
    groups[i].epsilon = plan.norms[i].epsilon;
    groups[i].raw_weight = kernel_weights[i].raw;
    groups[i].weight_shift = kernel_weights[i].shift;
  }
  run_map(in, plan.shape(), rotation_of(plan.angles, /*inverse=*/false), groups);
  return result;
}

// Backward of a part with a norm, with the tensors that must live until the kernel has been launched.
struct NormPart {
  HeadGroupBackward group;
  KernelWeight weight;
  Tensor grad_weight;  // in the type of the weight; in acc on the CPU
};
// Prepares the backward of part `which`, which writes into `grad`, the gradient of qkv.
NormPart norm_part(const SplitPlan& plan, size_t which, const Tensor& in, const Tensor& weight, const Tensor& grad_out,
                   const Tensor& grad) {
  NormPart part{.weight = kernel_weight(in, weight, plan.norms[which].zero_centered)};
  const bool as_weight = in.is_cuda() && weight.scalar_type() != at::kDouble;
  part.grad_weight = at::empty_like(part.weight.weight, as_weight ? weight.scalar_type() : acc_dtype(in));
  part.group = {.in = part_in(in, plan.heads, which),
                .grad_out = heads_in(grad_out),
                .grad_in = part_out(grad, plan.heads, which),
                .heads = grad_out.size(1),
                .norm_weight = part.weight.weight.const_data_ptr(),
                .epsilon = plan.norms[which].epsilon,
                .grad_weight = part.grad_weight.mutable_data_ptr(),
                .raw_weight = part.weight.raw,
                .weight_shift = part.weight.shift,
                .grad_weight_dtype = part.grad_weight.scalar_type()};
  return part;
}

// Runs backward of all parts in one launch and returns true, or returns false if no kernel can do that.
bool run_split_backward(const Tensor& grad, const SplitPlan& plan, const QkvBackward& qkv) {
  if constexpr (kCudaKernels) {
    const Rotation rotation = rotation_of(plan.angles, /*inverse=*/true);
    if (!grad.is_cuda() || !can_split_backward_cuda(plan.shape(), rotation, qkv)) return false;
    const Tensor workspace = floats_for(grad, split_backward_workspace_cuda(plan.shape()));
    split_backward_cuda(plan.shape(), rotation, qkv, workspace.mutable_data_ptr<float>(), stream_of(grad));
    return true;
  }
  return false;
}

// Inputs that receive a gradient: qkv and the weights of the norms. Outputs: q, k, v.
class SplitQkvFunction : public torch::autograd::Function<SplitQkvFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& qkv, const std::optional<Tensor>& q_weight,
                               const std::optional<Tensor>& k_weight, const SplitPlan& plan) {
    const std::array weights{q_weight.value_or(Tensor()), k_weight.value_or(Tensor())};
    const std::array<Tensor, 3> result = split_kernel(plan, qkv, weights);
    save_state(ctx, plan);
    ctx->set_materialize_grads(false);
    if (q_weight || k_weight) ctx->save_for_backward({qkv, weights[0], weights[1]});
    return {result[0], result[1], result[2]};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto& plan = saved_state<SplitPlan>(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const QkvHeads& heads = plan.heads;
    const Tensor grad = at::empty({plan.tokens, (heads.query + 2 * heads.key_value) * heads.head_dim}, plan.options);
    variable_list result{grad, {}, {}, {}};
    // `in` and `dense` hold the memory that the kernels read until they have been launched.
    const Tensor in = saved.empty() ? Tensor() : dense_last(saved[0]);
    std::array<Tensor, 3> dense;
    std::array<NormPart, 2> norms;
    QkvBackward qkv;
    std::vector<HeadGroup> groups;
    for (size_t i = 0; i < 3; ++i) {
      if (!grads[i].defined()) {
        part_view(grad, heads, i).zero_();
        continue;
      }
      dense[i] = dense_last(grads[i]);
      if (plan.norms[i].present) {
        norms[i] = norm_part(plan, i, in, saved[1 + i], dense[i], grad);
        qkv.part[i] = norms[i].group;
        continue;
      }
      const HeadsOut out = part_out(grad, heads, i);
      groups.push_back({.in = heads_in(dense[i]), .out = out, .heads = dense[i].size(1), .rotate = i < 2});
      qkv.part[i] = {.grad_out = heads_in(dense[i]), .grad_in = out, .heads = dense[i].size(1)};
    }
    // One launch if it can be; else one per part with a norm, and one for the others together.
    if (!run_split_backward(grad, plan, qkv)) {
      const Rotation rotation = rotation_of(plan.angles, /*inverse=*/true);
      for (const NormPart& part : norms)
        if (part.grad_weight.defined()) run_map_backward(grad, plan.shape(), rotation, part.group);
      run_map(grad, plan.shape(), rotation, groups);
    }
    for (size_t i = 0; i < 2; ++i)
      if (norms[i].grad_weight.defined()) result[1 + i] = norms[i].grad_weight.to(saved[1 + i].scalar_type());
    return result;
  }
};

void check_split(const Tensor& qkv, const QkvHeads& heads, const NormWeights* norm) {
  check(
      qkv.dim() == 2 && qkv.is_floating_point() && qkv.size(1) == (heads.query + 2 * heads.key_value) * heads.head_dim,
      "split_qkv: {} query and {} key/value heads of {} channels make rows of {}; qkv is {} of {}", heads.query,
      heads.key_value, heads.head_dim, (heads.query + 2 * heads.key_value) * heads.head_dim, shape_text(qkv),
      c10::toString(qkv.scalar_type()));
  if (norm == nullptr) return;
  check(norm->weight.defined() && norm->weight.dim() == 1 && norm->weight.size(0) == heads.head_dim,
        "split_qkv: the norm of heads of {} channels has a weight of {}; it takes one number per channel",
        heads.head_dim, norm->weight.defined() ? shape_text(norm->weight) : "nothing");
}

// Whether the kernels can compute this norm on the way.
bool fusible(const NormWeights* norm) { return norm == nullptr || norm->kind == NormKind::kRms; }

}  // namespace

Tensor rotate_composite(const Tensor& x, const RopeAngles& angles) {
  if (!angles.defined()) return x;
  const int64_t rotated = 2 * angles.cos.size(1);
  const Tensor cos = angles.cos.unsqueeze(1);  // [t, 1, r/2]
  const Tensor sin = angles.sin.unsqueeze(1);
  const Tensor part = x.narrow(2, 0, rotated).to(acc_dtype(x));
  Tensor turned;
  if (angles.interleaved) {
    const Tensor a = part.slice(2, 0, rotated, 2), b = part.slice(2, 1, rotated, 2);
    turned = at::stack({a * cos - b * sin, b * cos + a * sin}, 3).flatten(2);
  } else {
    const Tensor a = part.narrow(2, 0, rotated / 2), b = part.narrow(2, rotated / 2, rotated / 2);
    turned = at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
  }
  turned = turned.to(x.scalar_type());
  return rotated == x.size(2) ? turned : at::cat({turned, x.narrow(2, rotated, x.size(2) - rotated)}, 2);
}

Tensor apply_rope(const Tensor& x, const RopeAngles& angles) {
  check(x.dim() == 3 && x.is_floating_point(), "apply_rope takes heads [t, n, d]; it got {} of {}", shape_text(x),
        c10::toString(x.scalar_type()));
  if (!angles.defined()) return x;
  check_angles(angles, x.size(0), x.size(2));
  if (!has_kernel(x)) return rotate_composite(x, angles);
  return needs_gradient({x}) ? RopeFunction::apply(x, angles) : rotate_kernel(x, angles, /*inverse=*/false);
}

std::tuple<Tensor, Tensor, Tensor> split_qkv(const Tensor& qkv, const QkvHeads& heads, const RopeAngles& angles,
                                             const NormWeights* q_norm, const NormWeights* k_norm) {
  check_split(qkv, heads, q_norm);
  check_split(qkv, heads, k_norm);
  check_angles(angles, qkv.size(0), heads.head_dim);
  if (!has_kernel(qkv) || !fusible(q_norm) || !fusible(k_norm)) {
    const auto query_or_key = [&](size_t which, const NormWeights* weights) {
      const Tensor part = part_view(qkv, heads, which);
      return apply_rope(weights == nullptr ? part : norm(part, *weights), angles).contiguous();
    };
    return {query_or_key(0, q_norm), query_or_key(1, k_norm), part_view(qkv, heads, 2).contiguous()};
  }
  const SplitPlan plan{heads, angles, {head_norm(q_norm), head_norm(k_norm)}, qkv.size(0), qkv.options()};
  const std::array weights{q_norm == nullptr ? Tensor() : q_norm->weight,
                           k_norm == nullptr ? Tensor() : k_norm->weight};
  if (!needs_gradient({qkv, weights[0], weights[1]})) {
    std::array<Tensor, 3> result = split_kernel(plan, qkv, weights);
    return {result[0], result[1], result[2]};
  }
  const variable_list out = SplitQkvFunction::apply(qkv, if_defined(weights[0]), if_defined(weights[1]), plan);
  return {out[0], out[1], out[2]};
}

}  // namespace megalith::ops
