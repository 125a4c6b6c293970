// Checks and dispatch of four_bit.h, double quantization, and rectangles. Scales are few: a 64th of the numbers. So
// double quantization runs on the host, where it has one order, and rectangles are cut by ATen's operations. Numbers
// themselves go through kernels; a device without them sends them to the host and back.
#include "megalith/ops/quantize/four_bit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/quantize/four_bit_internal.h"

namespace megalith::ops {

namespace {

constexpr std::array<float, 16> kNf4Values{-1.0F,
                                           -0.6961928009986877F,
                                           -0.5250730514526367F,
                                           -0.39491748809814453F,
                                           -0.28444138169288635F,
                                           -0.18477343022823334F,
                                           -0.09105003625154495F,
                                           0.0F,
                                           0.07958029955625534F,
                                           0.16093020141124725F,
                                           0.24611230194568634F,
                                           0.33791524171829224F,
                                           0.44070982933044434F,
                                           0.5626170039176941F,
                                           0.7229568362236023F,
                                           1.0F};
// In the order of the codes: sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 8> kFp4Magnitudes{0.0F, 0.0625F, 8.0F, 12.0F, 4.0F, 6.0F, 2.0F, 3.0F};

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the mean of the scales as fp32. One order, in fp64: see the header.
float mean_of(const at::Tensor& scales) {
  const auto* values = scales.const_data_ptr<float>();
  double sum = 0;
  for (int64_t i = 0; i < scales.numel(); ++i) sum += static_cast<double>(values[i]);
  return static_cast<float>(sum / static_cast<double>(std::max<int64_t>(scales.numel(), 1)));
}

// Replaces scales, which are on the host, by their codes.
void quantize_scales(FourBitTensor& tensor) {
  const at::Tensor scales = tensor.scales;
  const int64_t count = scales.numel();
  tensor.offset = mean_of(scales);
  tensor.map = nested_values();
  tensor.nested = at::empty({divided_up(count, kNestedBlock)}, at::kFloat);
  tensor.scales = at::empty({count}, at::kByte);
  const auto* map = tensor.map.const_data_ptr<float>();
  const auto* from = scales.const_data_ptr<float>();
  auto* nested = tensor.nested.mutable_data_ptr<float>();
  auto* codes = tensor.scales.mutable_data_ptr<uint8_t>();
  std::array<float, 255> limits{};  // between neighbouring values
  for (size_t i = 0; i < limits.size(); ++i) limits[i] = (map[i] + map[i + 1]) * 0.5F;
  for (int64_t begin = 0; begin < count; begin += kNestedBlock) {
    const int64_t end = std::min(count, begin + kNestedBlock);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(from[i] - tensor.offset));
    nested[begin / kNestedBlock] = largest;
    const float inverse = 1.0F / std::max(largest, kSmallestDivisor);
    for (int64_t i = begin; i < end; ++i) {
      const float scaled = (from[i] - tensor.offset) * inverse;
      codes[i] = static_cast<uint8_t>(std::ranges::lower_bound(limits, scaled) - limits.begin());
    }
  }
}

FourBitTensor moved_to(FourBitTensor tensor, at::Device device) {
  for (at::Tensor* t : {&tensor.codes, &tensor.scales, &tensor.nested, &tensor.map})
    if (t->defined()) *t = t->to(device);
  return tensor;
}

// Returns the codes of a rectangle, row by row, two per byte.
at::Tensor cut_codes(const FourBitTensor& whole, const MatrixRectangle& where) {
  const int64_t first = where.first_row * where.whole_columns, count = where.rows * where.columns;
  if (where.columns == where.whole_columns && first % 2 == 0)
    return whole.codes.narrow(0, first / 2, divided_up(count, 2)).clone();
  // One code per byte, of the rows of the rectangle alone.
  const int64_t begin = first / 2, end = divided_up(first + where.rows * where.whole_columns, 2);
  const at::Tensor bytes = whole.codes.narrow(0, begin, end - begin);
  const at::Tensor each = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, 1).view(-1);
  at::Tensor codes = each.narrow(0, first - 2 * begin, where.rows * where.whole_columns)
                         .view({where.rows, where.whole_columns})
                         .narrow(1, where.first_column, where.columns)
                         .reshape(-1);
  if (count % 2 != 0) codes = at::constant_pad_nd(codes, {0, 1});
  codes = codes.view({-1, 2});
  return codes.select(1, 0).bitwise_left_shift(4).bitwise_or(codes.select(1, 1));
}

}  // namespace

FourBitArrays arrays_of(const FourBitMatrix& matrix) {
  const FourBitTensor& numbers = matrix.numbers;
  FourBitArrays arrays{};
  std::ranges::copy(numbers.values, arrays.values);
  arrays.codes = numbers.codes.const_data_ptr<uint8_t>();
  if (numbers.nested.defined()) {
    arrays.scale_codes = numbers.scales.const_data_ptr<uint8_t>();
    arrays.nested = numbers.nested.const_data_ptr<float>();
    arrays.map = numbers.map.const_data_ptr<float>();
  } else {
    arrays.scales = numbers.scales.const_data_ptr<float>();
  }
  arrays.offset = numbers.offset;
  arrays.block = numbers.block;
  arrays.columns = matrix.where.columns;
  arrays.first_row = matrix.where.first_row;
  arrays.first_column = matrix.where.first_column;
  arrays.whole_columns = matrix.where.whole_columns;
  arrays.scales_per_row = matrix.scales_per_row;
  return arrays;
}

double four_bit_bytes(const FourBitFormat& format) {
  const double scale = format.double_quantization ? 1 + 4.0 / static_cast<double>(kNestedBlock) : 4;
  return 0.5 + scale / static_cast<double>(kFourBitBlock);
}

std::array<float, 16> four_bit_values(FourBitKind kind) {
  if (kind == FourBitKind::kNf4) return kNf4Values;
  std::array<float, 16> values{};
  for (size_t i = 0; i < kFp4Magnitudes.size(); ++i) {
    values[i] = kFp4Magnitudes[i] / 12.0F;
    values[i + 8] = -values[i];
  }
  values[8] = 0;
  return values;
}

// Means of neighbours in 2, 4, … 128 equal parts of [0.1, 1], for each of seven powers of ten and both signs, 0 and 1:
// the operations of bitsandbytes one by one, so that the last bits are the same.
at::Tensor nested_values() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts{at::tensor({0.0F, 1.0F}, at::kFloat)};
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  for (int i = 0; i < 7; ++i) {
    const int64_t items = (int64_t{1} << i) + 1;
    const at::Tensor bounds = at::linspace(0.1, 1, items, at::kFloat);
    const at::Tensor means = (bounds.narrow(0, 0, items - 1) + bounds.narrow(0, 1, items - 1)) / 2.0;
    parts.push_back(means * kPowers[i]);
    parts.push_back(means * -kPowers[i]);
  }
  return std::get<0>(at::cat(parts).sort());
}

FourBitTensor to_four_bit(const at::Tensor& x, const FourBitFormat& format) {
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = x.detach().contiguous();
  if (!has_kernel(numbers)) return moved_to(to_four_bit(numbers.cpu(), format), x.device());
  const int64_t n = numbers.numel();
  FourBitTensor tensor{.values = four_bit_values(format.kind), .numel = n};
  tensor.codes = at::empty({divided_up(n, 2)}, numbers.options().dtype(at::kByte));
  tensor.scales = at::empty({divided_up(n, kFourBitBlock)}, numbers.options().dtype(at::kFloat));
  const bool nf4 = format.kind == FourBitKind::kNf4;
  auto* codes = tensor.codes.mutable_data_ptr<uint8_t>();
  auto* scales = tensor.scales.mutable_data_ptr<float>();
  if (numbers.is_cpu()) {
    quantize_four_bit_cpu(numbers.scalar_type(), numbers.const_data_ptr(), n, nf4, kFourBitBlock, codes, scales);
  } else if constexpr (kCudaKernels) {
    quantize_four_bit_cuda(numbers.scalar_type(), numbers.const_data_ptr(), n, nf4, codes, scales, stream_of(numbers));
  }
  if (!format.double_quantization) return tensor;
  tensor.scales = tensor.scales.cpu();
  quantize_scales(tensor);
  return moved_to(std::move(tensor), x.device());
}

at::Tensor from_four_bit(const FourBitTensor& tensor, at::ScalarType dtype) {
  const at::Tensor to = at::empty({1, tensor.numel}, tensor.codes.options().dtype(dtype));
  if (tensor.numel == 0) return to.view(-1);
  read_four_bit({.where = {.rows = 1, .columns = tensor.numel, .whole_columns = tensor.numel}, .numbers = tensor}, 0, 0,
                to);
  return to.view(-1);
}

FourBitMatrix cut_four_bit(const FourBitTensor& whole, const MatrixRectangle& where, at::Device device) {
  const at::NoGradGuard no_grad;
  check_inside(where, whole.numel);
  FourBitMatrix matrix{.where = where};
  matrix.numbers = {.values = whole.values,
                    .block = whole.block,
                    .numel = where.rows * where.columns,
                    .nested = whole.nested,
                    .map = whole.map,
                    .offset = whole.offset};
  if (matrix.numbers.numel == 0) return matrix;
  matrix.numbers.codes = cut_codes(whole, where);
  const int64_t block = whole.block, first = where.first_row * where.whole_columns;
  if (where.columns == where.whole_columns) {
    const int64_t begin = first / block;
    const int64_t end = divided_up(first + where.rows * where.whole_columns, block);
    matrix.numbers.scales = whole.scales.narrow(0, begin, end - begin).clone();
  } else {
    const bool at_borders = where.whole_columns % block == 0 && where.first_column % block == 0;
    matrix.scales_per_row = divided_up(where.columns, block) + (at_borders ? 0 : 1);
    const at::TensorOptions whole_numbers = whole.scales.options().dtype(at::kLong);
    const at::Tensor rows = at::arange(where.rows, whole_numbers)
                                .mul_(where.whole_columns)
                                .add_(first + where.first_column)
                                .floor_divide_(block);
    const at::Tensor blocks = rows.unsqueeze(1) + at::arange(matrix.scales_per_row, whole_numbers).unsqueeze(0);
    matrix.numbers.scales = whole.scales.index_select(0, blocks.clamp_max(whole.scales.numel() - 1).view(-1));
  }
  matrix.numbers = moved_to(std::move(matrix.numbers), device);
  return matrix;
}

void read_four_bit(const FourBitMatrix& matrix, int64_t row, int64_t column, const at::Tensor& to) {
  check_fills(to, row, column, matrix.where.rows, matrix.where.columns);
  if (to.numel() == 0) return;
  if (!has_kernel(to)) {
    FourBitMatrix host = matrix;
    host.numbers = moved_to(std::move(host.numbers), at::kCPU);
    const at::Tensor numbers = at::empty_like(to, to.options().device(at::kCPU));
    read_four_bit(host, row, column, numbers);
    const at::NoGradGuard no_grad;
    to.copy_(numbers);
    return;
  }
  const FourBitArrays arrays = arrays_of(matrix);
  const FourBitSlice slice{row, column, to.size(0), to.size(1)};
  if constexpr (kCudaKernels) {
    if (to.is_cuda()) return read_four_bit_cuda(arrays, slice, to.scalar_type(), to.mutable_data_ptr(), stream_of(to));
  }
  read_four_bit_cpu(arrays, slice, to.scalar_type(), to.mutable_data_ptr());
}

}  // namespace megalith::ops
