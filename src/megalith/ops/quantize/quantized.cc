#include "megalith/ops/quantize/quantized.h"

#include <ATen/ATen.h>

namespace megalith::ops {

namespace {

// One function for each form, for std::visit.
template <typename... F>
struct ByForm : F... {
  using F::operator()...;
};

}  // namespace

int bits_of(const QuantizedFormat& format) { return std::holds_alternative<FourBitFormat>(format) ? 4 : 8; }
int bits_of(const QuantizedTensor& tensor) { return std::holds_alternative<FourBitTensor>(tensor) ? 4 : 8; }

double quantized_bytes(const QuantizedFormat& format, int64_t numel, int64_t rows) {
  const auto numbers = static_cast<double>(numel);
  if (const auto* four_bit = std::get_if<FourBitFormat>(&format)) return numbers * four_bit_bytes(*four_bit);
  return numbers + 4 * static_cast<double>(rows);
}

QuantizedTensor to_quantized(const at::Tensor& x, const QuantizedFormat& format) {
  if (const auto* four_bit = std::get_if<FourBitFormat>(&format)) return to_four_bit(x, *four_bit);
  return to_eight_bit(x);
}

at::Tensor from_quantized(const QuantizedTensor& tensor, at::ScalarType dtype) {
  return std::visit(ByForm{[&](const FourBitTensor& t) { return from_four_bit(t, dtype); },
                           [&](const EightBitTensor& t) { return from_eight_bit(t, dtype).view(-1); }},
                    tensor);
}

QuantizedMatrix cut_quantized(const QuantizedTensor& whole, const MatrixRectangle& where, at::Device device) {
  return std::visit(ByForm{[&](const FourBitTensor& t) -> QuantizedMatrix { return cut_four_bit(t, where, device); },
                           [&](const EightBitTensor& t) -> QuantizedMatrix { return cut_eight_bit(t, where, device); }},
                    whole);
}

void read_quantized(const QuantizedMatrix& matrix, int64_t row, int64_t column, const at::Tensor& to) {
  std::visit(ByForm{[&](const FourBitMatrix& m) { read_four_bit(m, row, column, to); },
                    [&](const EightBitTensor& m) { read_eight_bit(m, row, column, to); }},
             matrix);
}

std::vector<at::Tensor> tensors_of(const QuantizedMatrix& matrix) {
  std::vector<at::Tensor> tensors =
      std::visit(ByForm{[](const FourBitMatrix& m) {
                          return std::vector<at::Tensor>{m.numbers.codes, m.numbers.scales, m.numbers.nested};
                        },
                        [](const EightBitTensor& m) {
                          return std::vector<at::Tensor>{m.codes, m.scales};
                        }},
                 matrix);
  std::erase_if(tensors, [](const at::Tensor& t) { return !t.defined(); });
  return tensors;
}

}  // namespace megalith::ops
