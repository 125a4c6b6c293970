// Weights in 4 bits in the files of a model: the tensors that bitsandbytes writes for one, and what they stand for.
//
//   X.weight                                 uint8 [⌈n/2⌉, 1], two codes per byte
//   X.weight.absmax                          fp32, or uint8 with double quantization
//   X.weight.quant_map                       fp32 [16], values by code
//   X.weight.nested_absmax, .nested_quant_map   with double quantization
//   X.weight.quant_state.bitsandbytes__nf4   (or __fp4) bytes of a JSON object: shape, dtype, block sizes, offset
//
// WeightFiles shows them as one tensor X.weight of that shape and dtype, and gives its codes to those who keep them
// (WeightFiles::four_bit).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/dtype.h"
#include "megalith/ops/quantize/four_bit.h"

namespace megalith::hf {

// A weight in 4 bits.
struct FourBitEntry {
  std::string name;  // "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;
  Dtype dtype = Dtype::kF32;  // that the weight had, and is read as
  int64_t block = 0;
  bool nested = false;  // double quantization
  float offset = 0;

  // Returns the names of the other tensors that belong to it. `state` is that of the JSON object.
  std::vector<std::string> parts(std::string_view state) const;
};

// Returns the name of the weight in 4 bits that a tensor of this name describes; empty if it describes none.
std::string four_bit_name(std::string_view state);
// Reads the description of a weight; `state` is its bytes. Throws DataError for one that cannot be read, such as of
// another block size of scales.
FourBitEntry read_four_bit_entry(const std::string& name, const at::Tensor& state, const std::string& folder);
// Returns the weight of an entry; `tensor` returns a tensor of the files by its name. Throws DataError for tensors
// whose sizes do not fit.
ops::FourBitTensor read_four_bit_tensor(const FourBitEntry& entry,
                                        const std::function<at::Tensor(const std::string&)>& tensor);

}  // namespace megalith::hf
