#include "megalith/nn/parameter/fp8_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

namespace {

at::Tensor from_bytes(const Parameter& parameter) {
  const Fp8Value& bytes = *parameter.attached.bytes;
  return ops::from_fp8(parameter.value.detach(), bytes.inverse_scale).to(bytes.dtype);
}

}  // namespace

at::Tensor loadable(const Parameter& parameter) {
  if (!parameter.attached.bytes) return parameter.value;
  at::Tensor& loaded = parameter.attached.bytes->loaded;
  if (!loaded.defined()) loaded = from_bytes(parameter);
  return loaded;
}

// Rounded one by one, when they are written: no copy of the model in its dtype exists.
SavedShards saved_shards(const Parameter& parameter) {
  const auto& bytes = parameter.attached.bytes;
  if (!bytes) return {parameter.sharded()};
  if (!bytes->main) return {parameter.sharded(from_bytes(parameter))};
  SavedShards saved{bytes->main(), /*owned=*/true};
  for (parallel::ShardedTensor& part : saved.parts) {
    const at::Tensor shape = at::empty(part.local.sizes(), at::TensorOptions(bytes->dtype).device(at::kMeta));
    part.load = [exact = part, dtype = bytes->dtype] { return exact.data().to(dtype); };
    part.local = shape;
  }
  return saved;
}

}  // namespace megalith::nn
