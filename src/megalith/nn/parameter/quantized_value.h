// QuantizedValue: a frozen weight that the model keeps in 4 or 8 bits (quantization_bit), below an adapter.
//
// Parameter::value then has the shape, dtype and device of the weight, but one element of memory, a NaN: code that
// reads it by mistake shows at once, and code that writes it throws. The numbers lie here, one matrix of codes for each
// ParameterPart, and products read them slice by slice (tensor_parallel/quantized_product.cc).
//
// Blocks or rows of numbers that share a scale are those of the whole tensor as its files hold it, whatever part of it
// a rank has (ops::QuantizedMatrix). So a weight is the same in every layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/quantize/quantized.h"

namespace megalith::nn {

// Attachments::quantized. Used by one thread per rank.
struct QuantizedValue {
  ops::QuantizedFormat format;
  // One per ParameterPart, in their order; empty before the weight is loaded. Files in 4 bits keep their own values and
  // blocks, whatever `format` says.
  std::vector<ops::QuantizedMatrix> parts{};
};

// Whether a parameter is kept in 4 or 8 bits in a set that does so, by its full name: linear weights of layers, as
// bitsandbytes replaces them in transformers. Norms, biases, embeddings, heads, routers and stacked experts are not.
bool can_be_quantized(const ParameterSpec& spec);
// Returns the value of such a parameter; see above.
at::Tensor quantized_placeholder(at::IntArrayRef shape, const at::TensorOptions& options);

// Writes rows and columns of the weight from (row, column) on to `to`, a contiguous matrix. The weight has been loaded.
void read_quantized(const Parameter& parameter, int64_t row, int64_t column, const at::Tensor& to);
// Returns bytes that the weight takes on this rank.
int64_t quantized_bytes(const Parameter& parameter);

}  // namespace megalith::nn
