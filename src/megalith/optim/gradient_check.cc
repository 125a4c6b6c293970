// Looking for the parameter at fault reads gradient by gradient and waits for the device, so it happens only after a
// cheaper check of the whole bucket has failed.
#include "megalith/optim/gradient_check.h"

#include <ATen/ATen.h>

#include "megalith/optim/param_buffer.h"

namespace megalith::optim {

at::Tensor BucketGradients::values() const {
  const BufferLayout::Bucket& place = buffer.layout().buckets[bucket];
  return buffer.grads().narrow(0, place.begin, place.numel());
}

std::string BucketGradients::name() const { return fmt::format("bucket {} of buffer {}", bucket, buffer.number()); }

// Also works after the reduction: a sum or mean with a NaN or infinity in it is not finite either.
std::optional<std::string> describe_non_finite(const BucketGradients& gradients) {
  const ParamBuffer& buffer = gradients.buffer;
  for (const int item : buffer.layout().buckets[gradients.bucket].items) {
    const nn::Parameter& p = *buffer.parameters()[item];
    const at::Tensor good = at::isfinite(p.grad.main_grad);
    if (good.all().item<bool>()) continue;
    const int64_t numel = p.grad.main_grad.numel();
    return fmt::format(
        "the gradient of {} on rank {} of {} has {} elements of {} that are NaN or infinite, {}; look at the loss and "
        "the input of this step (set check_for_nan_in_loss_and_grad=false to continue anyway)",
        p.spec.name, buffer.groups().all.rank(), buffer.groups().all.name(),
        numel - at::count_nonzero(good).item<int64_t>(), numel,
        gradients.reduced ? "some of them before it was reduced" : "before it is reduced");
  }
  return std::nullopt;
}

void require_finite(const BucketGradients& gradients) {
  if (gradients.finite) return;
  if (const auto description = describe_non_finite(gradients)) throw NonFiniteGradient(*description);
}

}  // namespace megalith::optim
