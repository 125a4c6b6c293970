#include "megalith/ops/moe/sort_choices.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/device_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/moe/sort_choices_internal.h"

namespace megalith::ops {

namespace {

SortedChoices composite(const at::Tensor& experts, int64_t count) {
  const at::Tensor flat = experts.flatten();
  const auto [sorted, order] = flat.sort(/*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
  at::Tensor row = at::empty_like(order);
  row.scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor first = at::searchsorted(sorted, at::arange(count + 1, flat.options()));
  return {{order.div(experts.size(1), "floor"), row.view(experts.sizes()), true}, first};
}

}  // namespace

SortedChoices sort_choices(const at::Tensor& experts, int64_t count) {
  check(experts.dim() == 2 && experts.scalar_type() == at::kLong && count > 0,
        "sort_choices takes the experts [t, k] of tokens, of which there are {}; it got {} of {}", count,
        shape_text(experts), c10::toString(experts.scalar_type()));
  if constexpr (kCudaKernels) {
    if (experts.is_cuda() && count <= kMostSortedExperts && experts.numel() > 0) {
      const at::Tensor chosen = experts.contiguous();
      const int64_t n = chosen.numel();
      SortedChoices result;
      result.map.token = at::empty({n}, chosen.options());
      result.map.row = at::empty_like(chosen);
      result.first = at::empty({count + 1}, chosen.options());
      const at::Tensor workspace = at::empty({sort_choices_workspace_cuda(n, count)}, chosen.options().dtype(at::kInt));
      sort_choices_cuda(chosen.const_data_ptr<int64_t>(), n, chosen.size(1), count,
                        result.map.token.mutable_data_ptr<int64_t>(), result.map.row.mutable_data_ptr<int64_t>(),
                        result.first.mutable_data_ptr<int64_t>(), workspace.mutable_data_ptr<int>(), stream_of(chosen));
      return result;
    }
  }
  return composite(experts, count);
}

}  // namespace megalith::ops
