// Fp8Value: a weight that the model keeps in fp8 from one update to the next (fp8_param), one byte per number.
// Parameter::value then holds numbers in e4m3, and the weight is value · inverse_scale: one scale per tensor, or one
// per 128 x 128 numbers. Products multiply the bytes as they are. The optimizer writes bytes and scales from its main
// parameters, which alone know the weight exactly. So weights are loaded and saved through the functions below, which
// also take parameters that are not in fp8.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::nn {

// Attachments::bytes. Used by one thread per rank.
struct Fp8Value {
  at::ScalarType dtype = at::kFloat;  // the model's: that of the value before it was in fp8
  at::Tensor inverse_scale;           // fp32 [1], or [o/128, i/128]; overwritten in place
  // A weight [o, i] in `dtype` that was loaded, and that the optimizer has not taken over yet; undefined otherwise.
  at::Tensor loaded;
  // Returns the rectangles of the weight that this rank's optimizer owns, in fp32; empty without an optimizer.
  std::function<std::vector<parallel::ShardedTensor>()> main{};
};

// Returns the tensor to load a weight into: its value, or Fp8Value::loaded, which is made from the bytes if it is
// undefined. The optimizer takes it over in reload_main_params(). Throws ConfigError for a weight in 4 or 8 bits, which
// no tensor holds.
at::Tensor loadable(const Parameter& parameter);

// Returns the rectangles of the weight to be saved. They are those of Parameter::sharded() or, for a weight in fp8, the
// main parameters rounded to the model's dtype: of all data-parallel ranks, one has a rectangle with replica 0 then.
// Where no optimizer holds them any longer, they are made from the bytes. Those of a weight in 4 or 8 bits are
// made from these, one by one.
struct SavedShards {
  std::vector<parallel::ShardedTensor> parts;
  bool owned = false;  // replicas are numbered over all ranks, instead of over the tensor-parallel ones
};
SavedShards saved_shards(const Parameter& parameter);

}  // namespace megalith::nn
