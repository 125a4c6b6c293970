// Checks and dispatch of stored_adam.h. Formats become numbers in a table of pointers, so that one kernel serves all
// combinations of them.
#include "megalith/ops/update/stored_adam.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/stored_adam_internal.h"

namespace megalith::ops {

namespace {

StoredForm form_of(at::ScalarType type, bool scaled) {
  if (type == at::kFloat) return StoredForm::kFp32;
  if (type == at::kBFloat16) return StoredForm::kBf16;
  if (type == at::kShort) return StoredForm::kHalves;
  if (type == at::kFloat8_e4m3fn && scaled) return StoredForm::kScaledFp8;
  check(type == at::kHalf, "Adam got stored elements of {}; fp32, bf16, fp16, fp8 and halves are known",
        c10::toString(type));
  return scaled ? StoredForm::kScaledFp16 : StoredForm::kFp16;
}

StoredArray array_of(const StoredValues& stored) {
  StoredArray array{.form = form_of(stored.values.scalar_type(), stored.scales.defined()),
                    .values = stored.values.mutable_data_ptr()};
  if (stored.scales.defined()) array.scales = stored.scales.mutable_data_ptr<float>();
  if (stored.high.defined()) array.high = static_cast<uint16_t*>(stored.high.mutable_data_ptr());
  return array;
}

bool starts_at_vector(const at::Tensor& t) {
  return !t.defined() || reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

bool fits_kernel(const StoredAdamTensors& t) {
  const at::Tensor& main = t.main.values;
  if (!on_cuda_kernel(main) || main.numel() % kScaleBlock != 0) return false;
  for (const at::Tensor& each : {main, t.main.high, t.grad, t.exp_avg.values, t.exp_avg_sq.values, t.param,
                                 t.main.scales, t.exp_avg.scales, t.exp_avg_sq.scales})
    if (each.defined() && each.device() != main.device()) return false;
  for (const at::Tensor& each : {main, t.main.high, t.grad, t.exp_avg.values, t.exp_avg_sq.values, t.param})
    if (!starts_at_vector(each)) return false;
  return true;
}

}  // namespace

bool adam_update_stored(const StoredAdamTensors& t, const AdamSettings& settings, std::span<const UpdateRun> runs) {
  if (!fits_kernel(t)) return false;
  for (const at::Tensor& each : {t.grad, t.exp_avg.values, t.exp_avg_sq.values, t.param})
    check(!each.defined() || (each.is_contiguous() && each.numel() == t.main.numel()),
          "an update of {} stored elements got a tensor of another size, or one that is not contiguous",
          t.main.numel());
  StoredAdamArrays arrays{.n = t.main.numel(),
                          .main = array_of(t.main),
                          .grad = array_of({.values = t.grad}),
                          .first = array_of(t.exp_avg),
                          .second = array_of(t.exp_avg_sq),
                          .multiprocessors = t.multiprocessors};
  if (t.param.defined()) arrays.param = array_of({.values = t.param});
  if (t.gate.defined()) arrays.gate = t.gate.const_data_ptr<float>();
  if constexpr (kCudaKernels) stored_adam_cuda(arrays, settings, runs, stream_of(t.main.values));
  return true;
}

}  // namespace megalith::ops
