#include "megalith/nn/parameter/fp8_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/quantized_value.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

namespace {

at::Tensor from_bytes(const Parameter& parameter) {
  const Fp8Value& bytes = *parameter.attached.bytes;
  return ops::from_fp8(parameter.value.detach(), bytes.inverse_scale).to(bytes.dtype);
}

// Rectangles of a weight in 4 or 8 bits, each made when it is written.
std::vector<parallel::ShardedTensor> made_shards(const Parameter& parameter) {
  const at::Tensor shape = at::empty(parameter.value.sizes(), parameter.value.options().device(at::kMeta));
  std::vector<parallel::ShardedTensor> parts = parameter.sharded(shape);
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i].load = [&parameter, row = parameter.spec.parts[i].row, rows = parts[i].local.size(0)] {
      const at::Tensor numbers = at::empty({rows, parameter.value.size(1)}, parameter.value.options());
      read_quantized(parameter, row, 0, numbers);
      return numbers;
    };
  return parts;
}

}  // namespace

at::Tensor loadable(const Parameter& parameter) {
  if (parameter.attached.quantized)
    throw ConfigError(fmt::format(
        "{} is kept in {} bits (quantization_bit), which are made when the model is read from its folder; it"
        " takes no other weights. Leave out quantization_bit",
        parameter.spec.name, ops::bits_of(parameter.attached.quantized->format)));
  if (!parameter.attached.bytes) return parameter.value;
  at::Tensor& loaded = parameter.attached.bytes->loaded;
  if (!loaded.defined()) loaded = from_bytes(parameter);
  return loaded;
}

// Rounded one by one, when they are written: no copy of the model in its dtype exists.
SavedShards saved_shards(const Parameter& parameter) {
  const auto& bytes = parameter.attached.bytes;
  if (parameter.attached.quantized) return {made_shards(parameter)};
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
