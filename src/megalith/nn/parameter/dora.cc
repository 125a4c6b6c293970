#include "megalith/nn/parameter/dora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/nn/parameter/quantized_value.h"

namespace megalith::nn {

namespace {

// Returns rows of a weight: a view, or a copy of one in 4 or 8 bits.
at::Tensor rows_of(const Parameter& weight, int64_t first, int64_t count) {
  if (!weight.attached.quantized) return weight.value.detach().narrow(0, first, count);
  at::Tensor rows = at::empty({count, weight.value.size(1)}, weight.value.options());
  read_quantized(weight, first, 0, rows);
  return rows;
}

}  // namespace

int64_t norm_rows_at_once(int64_t columns) {
  constexpr int64_t kElements = int64_t{1} << 24;  // 64 MiB
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, columns));
}

// In fp32 whatever the dtype of the weight: a change of B·A by less than the step of bf16 still counts.
at::Tensor updated_norms(const Parameter& weight, const LowRank& update) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = update.a->value.detach(), b = update.b->value.detach();
  const int64_t block = norm_rows_at_once(a.size(1));
  at::Tensor norms = at::empty({b.size(0)}, b.options());  // squares, until the last line
  for (const LowRank::Part& part : update.parts)
    for (int64_t row = 0; row < part.rows; row += block) {
      const int64_t rows = std::min(block, part.rows - row);
      const at::Tensor sum = b.narrow(0, part.b + row, rows).mm(a.narrow(0, part.a, update.rank));
      sum.mul_(part.scale).add_(rows_of(weight, part.out + row, rows)).square_();
      norms.narrow(0, part.b + row, rows).copy_(sum.sum(1));
    }
  if (update.inputs_over) update.inputs_over->all_reduce(norms, comm::ReduceOp::kSum, "norms of DoRA");
  return norms.sqrt_();
}

}  // namespace megalith::nn
