// Weights in 8 bits in the files of a model: the tensors that bitsandbytes writes for one, and what they stand for.
//
//   X.weight          int8 [o, i], codes
//   X.SCB             fp32 [o], the largest magnitude of each row
//   X.weight_format   uint8, 0: codes lie row by row. Files of old versions may lack it
//
// WeightFiles shows them as one tensor X.weight in fp32, since they do not say which dtype it had, and gives its codes
// to those who keep them (WeightFiles::quantized).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/safetensors_file.h"
#include "megalith/ops/quantize/eight_bit.h"

namespace megalith::hf {

// Returns the name of the weight in 8 bits that a tensor of this name has the scales of; empty for other tensors.
std::string eight_bit_name(std::string_view scales);
// Returns the names of the tensors that may belong to a weight in 8 bits, besides its own: its scales first.
std::vector<std::string> eight_bit_parts(std::string_view name);
// Throws DataError unless `weight` can be a weight in 8 bits with the scales `scales`. `format` is X.weight_format, or
// undefined.
void check_eight_bit(const TensorInfo& weight, const TensorInfo& scales, const at::Tensor& format,
                     const std::string& folder);
// Returns the weight; `tensor` returns a tensor of the files by its name.
ops::EightBitTensor read_eight_bit_tensor(const std::string& name,
                                          const std::function<at::Tensor(const std::string&)>& tensor);

}  // namespace megalith::hf
