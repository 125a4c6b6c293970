// Autograd around the row kernels. Copies and sums are each other's backward: the gradient of copies is the plain sum
// of a token's rows, the gradient of a plain sum is a copy. Sums with weights save the rows, since the gradient of a
// weight is the product of its row with the token's gradient; one kernel computes both gradients.
#include "megalith/ops/moe/permute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/moe/permute_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;

// Rows and tokens have the same width and dtype: either serves.
PermuteSizes sizes_of(const Tensor& rows_or_tokens, const RowMap& map) {
  return {rows_or_tokens.scalar_type(), map.tokens(), map.row.size(1), map.rows(), rows_or_tokens.size(1)};
}

// Runs copy_rows without autograd. If every row is used, CUDA goes through the tokens and reads each of them once.
Tensor plain_copy(const Tensor& x, const RowMap& map) {
  const Tensor in = x.contiguous();
  Tensor y = at::empty({map.rows(), x.size(1)}, x.options());
  const auto* token = map.token.const_data_ptr<int64_t>();
  if constexpr (kCudaKernels) {
    if (x.is_cuda()) {
      if (map.every_row_used)
        spread_rows_cuda(sizes_of(x, map), in.const_data_ptr(), map.row.const_data_ptr<int64_t>(), y.mutable_data_ptr(),
                         stream_of(x));
      else
        copy_rows_cuda(sizes_of(x, map), in.const_data_ptr(), token, y.mutable_data_ptr(), stream_of(x));
      return y;
    }
  }
  copy_rows_cpu(sizes_of(x, map), in.const_data_ptr(), token, y.mutable_data_ptr());
  return y;
}

// Runs sum_rows without autograd; weights and residual may be undefined.
Tensor plain_sum(const Tensor& rows, const Tensor& weights, const RowMap& map, const Tensor& residual) {
  const Tensor in = rows.contiguous();
  const Tensor w = weights.defined() ? weights.contiguous() : Tensor();
  const Tensor start = residual.defined() ? residual.contiguous() : Tensor();
  Tensor y = at::empty({map.tokens(), rows.size(1)}, rows.options());
  const void *factors = w.defined() ? w.const_data_ptr() : nullptr,
             *begin = start.defined() ? start.const_data_ptr() : nullptr;
  const auto* row = map.row.const_data_ptr<int64_t>();
  if constexpr (kCudaKernels) {
    if (rows.is_cuda()) {
      sum_rows_cuda(sizes_of(rows, map), in.const_data_ptr(), factors, row, begin, y.mutable_data_ptr(),
                    stream_of(rows));
      return y;
    }
  }
  sum_rows_cpu(sizes_of(rows, map), in.const_data_ptr(), factors, row, begin, y.mutable_data_ptr());
  return y;
}

// Runs the backward of sums with weights: writes drows (not its fillers) and dw.
void plain_sum_backward(const Tensor& rows, const Tensor& w, const RowMap& map, const Tensor& dy, const Tensor& drows,
                        const Tensor& dw) {
  const auto* row = map.row.const_data_ptr<int64_t>();
  if constexpr (kCudaKernels) {
    if (rows.is_cuda())
      return sum_rows_backward_cuda(sizes_of(rows, map), rows.const_data_ptr(), w.const_data_ptr(), row,
                                    dy.const_data_ptr(), drows.mutable_data_ptr(), dw.mutable_data_ptr(),
                                    stream_of(rows));
  }
  sum_rows_backward_cpu(sizes_of(rows, map), rows.const_data_ptr(), w.const_data_ptr(), row, dy.const_data_ptr(),
                        drows.mutable_data_ptr(), dw.mutable_data_ptr());
}

// Needs no tensor in backward, only the map.
struct CopyRows : Function<CopyRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const RowMap& map) {
    save_state(ctx, map);
    return plain_copy(x, map);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {plain_sum(grads[0], {}, saved_state<RowMap>(ctx), {}), {}};
  }
};

// Inputs that receive a gradient: rows, weights and residual. The residual gets the output's gradient unchanged.
struct SumRows : Function<SumRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& rows, const MaybeTensor& weights, const RowMap& map,
                        const MaybeTensor& residual) {
    save_state(ctx, map);
    ctx->saved_data["residual"] = residual.has_value();
    const Tensor w = weights.value_or(Tensor());
    ctx->save_for_backward({w.defined() ? rows : Tensor(), w});  // plain sums need neither
    return plain_sum(rows, w, map, residual.value_or(Tensor()));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& map = saved_state<RowMap>(ctx);
    const auto saved = ctx->get_saved_variables();
    const Tensor dy = grads[0].contiguous();
    const Tensor dresidual = ctx->saved_data["residual"].toBool() ? grads[0] : Tensor();
    Tensor drows, dw;
    if (!saved[1].defined()) {
      drows = plain_copy(dy, map);
      // Fillers were copied, too; their gradient is 0.
      if (!map.every_row_used) drows.mul_(used_rows(map).to(drows.scalar_type()).unsqueeze(1));
      return {drows, dw, {}, dresidual};
    }
    const Tensor rows = saved[0].contiguous(), w = saved[1].contiguous();
    drows = map.every_row_used ? at::empty_like(rows) : at::zeros_like(rows);  // the kernel skips fillers
    dw = at::empty_like(w);
    plain_sum_backward(rows, w, map, dy, drows, dw);
    return {drows, dw, {}, dresidual};
  }
  // Returns 1 for rows in use, 0 for fillers. Shifted by one, so that -1 in `row` falls on an element that is cut off.
  static Tensor used_rows(const RowMap& map) {
    const Tensor all = at::zeros({map.rows() + 1}, map.token.options());
    return all.index_fill_(0, map.row.flatten().add(1), 1).narrow(0, 1, map.rows());
  }
};

// `name` is that of the public function, for the message.
void check_map(const char* name, const RowMap& map, const Tensor& x, int64_t expected_rows) {
  check(x.dim() == 2 && x.size(0) == expected_rows && map.token.scalar_type() == at::kLong && map.row.dim() == 2 &&
            map.row.scalar_type() == at::kLong && map.token.is_contiguous() && map.row.is_contiguous() &&
            map.token.device() == x.device() && map.row.device() == x.device(),
        "{} got {} on {} with a map of {} tokens and {} rows on {}; sizes and devices must agree, and the map must be "
        "contiguous int64",
        name, shape_text(x), x.device().str(), shape_text(map.row), shape_text(map.token), map.token.device().str());
}

}  // namespace

// `row` is the inverse permutation.
RowMap permutation_map(const Tensor& order) {
  const Tensor token = order.contiguous();
  const Tensor row = at::empty_like(token).scatter_(0, token, at::arange(token.size(0), token.options()));
  return {token, row.unsqueeze(1)};
}

Tensor copy_rows(const Tensor& x, const RowMap& map) {
  check_map("copy_rows", map, x, map.tokens());
  if (!has_kernel(x)) return x.index_select(0, map.token);
  return CopyRows::apply(x, map);
}

Tensor sum_rows(const Tensor& rows, const Tensor& weights, const RowMap& map, const Tensor& residual) {
  check_map("sum_rows", map, rows, map.rows());
  check(!weights.defined() || (weights.sizes() == map.row.sizes() && weights.scalar_type() == acc_dtype(rows)),
        "sum_rows got weights {} for a map {}; it takes one fp32 weight per copy of a token", shape_text(weights),
        shape_text(map.row));
  if (has_kernel(rows)) return SumRows::apply(rows, if_defined(weights), map, if_defined(residual));
  // Missing copies read row 0 and count with a weight of 0.
  const Tensor there = map.row.ge(0).to(acc_dtype(rows));
  const Tensor copies =
      rows.index_select(0, map.row.clamp_min(0).flatten()).view({map.tokens(), map.row.size(1), rows.size(1)});
  const Tensor sum = (copies * (weights.defined() ? weights * there : there).unsqueeze(2)).sum(1);
  return (residual.defined() ? sum + residual : sum).to(rows.scalar_type());
}

namespace {

// Sorts with ATen's operations, on CUDA: for more experts than the kernel takes, and where there is nothing to sort.
SortedChoices composite(const at::Tensor& experts, int64_t count) {
  const at::Tensor flat = experts.flatten();
  const auto [sorted, order] = flat.sort(/*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
  at::Tensor row = at::empty_like(order);
  row.scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor first = at::searchsorted(sorted, at::arange(count + 1, flat.options()));
  return {{order.div(experts.size(1), "floor"), row.view(experts.sizes()), true}, first};
}

SortedChoices empty_choices(const at::Tensor& chosen, int64_t count) {
  return {{at::empty({chosen.numel()}, chosen.options()), at::empty_like(chosen), true},
          at::empty({count + 1}, chosen.options())};
}

}  // namespace

SortedChoices sort_choices(const at::Tensor& experts, int64_t count) {
  check(experts.dim() == 2 && experts.scalar_type() == at::kLong && count > 0,
        "sort_choices takes int64 numbers [t, k] of {} experts; it got {} of {}", count, shape_text(experts),
        c10::toString(experts.scalar_type()));
  const at::Tensor chosen = experts.contiguous();
  const int64_t n = chosen.numel(), k = chosen.size(1);
  const auto* expert = chosen.const_data_ptr<int64_t>();
  SortedChoices result;
  const auto pointers = [&result] {
    return std::array{result.map.token.mutable_data_ptr<int64_t>(), result.map.row.mutable_data_ptr<int64_t>(),
                      result.first.mutable_data_ptr<int64_t>()};
  };
  if (chosen.is_cpu()) {
    result = empty_choices(chosen, count);
    const auto [token, row, first] = pointers();
    sort_choices_cpu(expert, n, k, count, token, row, first);
    return result;
  }
  if constexpr (kCudaKernels) {
    if (chosen.is_cuda() && count <= kMostSortedExperts && n > 0) {
      result = empty_choices(chosen, count);
      const auto [token, row, first] = pointers();
      const at::Tensor workspace = at::empty({sort_choices_workspace_cuda(n, count)}, chosen.options().dtype(at::kInt));
      sort_choices_cuda(expert, n, k, count, token, row, first, workspace.mutable_data_ptr<int>(), stream_of(chosen));
      return result;
    }
  }
  return composite(chosen, count);
}

// Row n of the result lies in the block whose end is the first one beyond n, as far from its start as in the source.
at::Tensor rows_by_block(const at::Tensor& sizes, const at::Tensor& order, int64_t rows) {
  const at::Tensor ends = sizes.index_select(0, order).cumsum(0);
  const at::Tensor shift = (sizes.cumsum(0) - sizes).index_select(0, order) - (ends - sizes.index_select(0, order));
  const at::Tensor n = at::arange(rows, sizes.options());
  return n + shift.index_select(0, at::searchsorted(ends, n, /*out_int32=*/false, /*right=*/true));
}

}  // namespace megalith::ops
