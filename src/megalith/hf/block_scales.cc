// A rectangle [r0, r0+n) × [c0, c0+m) of a weight is multiplied by rows r0/128 … of the scales, each repeated for the
// rows of its block, and by columns likewise: ranks whose slices cut a block use the same scale on both sides of the
// cut, so every layout reads the same values.
#include "megalith/hf/block_scales.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::hf {

namespace {

constexpr double kLargest = 448;             // the largest Float8_e4m3fn
constexpr int64_t kPieceElements = 4 << 20;  // elements that are in fp32 at a time

// Returns the size of a block in dimension `dim` of `dims`.
int64_t block_size(size_t dim, size_t dims, const ScaleBlock& block) {
  return dim + 1 == dims ? block.columns : dim + 2 == dims ? block.rows : 1;
}

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

std::vector<int64_t> block_scale_shape(at::IntArrayRef weight, const ScaleBlock& block) {
  std::vector<int64_t> shape;
  for (size_t d = 0; d < weight.size(); ++d) shape.push_back(blocks_of(weight[d], block_size(d, weight.size(), block)));
  return shape;
}

at::Tensor dequantized(const at::Tensor& rectangle, const at::Tensor& scales, at::IntArrayRef offset,
                       const ScaleBlock& block) {
  const at::NoGradGuard no_grad;
  check(scales.dim() == rectangle.dim() && std::ssize(offset) == rectangle.dim(),
        "scales of {} dimensions for a rectangle of {}", scales.dim(), rectangle.dim());
  at::Tensor factors = scales;
  for (size_t d = 0; d < offset.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const at::Tensor elements = at::arange(offset[d], offset[d] + rectangle.size(dim), at::kLong);
    factors = factors.index_select(dim, elements.floor_divide(block_size(d, offset.size(), block)));
  }
  return rectangle.to(at::kFloat).mul_(factors.to(at::kFloat));
}

void copy_dequantized(const at::Tensor& into, const at::Tensor& rectangle, const at::Tensor& scales,
                      at::IntArrayRef offset, const ScaleBlock& block) {
  const at::NoGradGuard no_grad;
  if (rectangle.numel() == 0) return;
  const int64_t dim = rectangle.dim() - 2, rows = rectangle.size(dim);
  const int64_t piece = std::max<int64_t>(1, kPieceElements / (rectangle.numel() / rows));
  std::vector<int64_t> begin = offset.vec();
  for (int64_t row = 0; row < rows; row += piece) {
    const int64_t count = std::min(piece, rows - row);
    begin[static_cast<size_t>(dim)] = offset[static_cast<size_t>(dim)] + row;
    at::Tensor part = into.narrow(dim, row, count);
    part.copy_(dequantized(rectangle.narrow(dim, row, count), scales, begin, block));
  }
}

BlockQuantized block_quantized(const at::Tensor& weight, const ScaleBlock& block) {
  const at::NoGradGuard no_grad;
  const int64_t rows = weight.size(-2), columns = weight.size(-1);
  const int64_t down = blocks_of(rows, block.rows), across = blocks_of(columns, block.columns);
  // Zeros in the tail change neither the largest magnitude nor, once they are cut off again, the result.
  const at::Tensor padded =
      at::constant_pad_nd(weight.to(at::kFloat), {0, across * block.columns - columns, 0, down * block.rows - rows}, 0);
  const at::Tensor blocks = padded.reshape({-1, down, block.rows, across, block.columns});
  // As transformers' Fp8Quantize: the values are multiplied by 448 / largest, where torch rounds twice (it takes 448
  // times the reciprocal), and the reciprocal of that is kept.
  const at::Tensor largest = blocks.abs().amax({2, 4}, /*keepdim=*/true);
  const at::Tensor factors = at::where(largest > 0, largest.reciprocal() * kLargest, at::ones_like(largest));
  const at::Tensor rounded = (blocks * factors).clamp(-kLargest, kLargest).reshape(padded.sizes());
  return {rounded.narrow(-2, 0, rows).narrow(-1, 0, columns).to(at::kFloat8_e4m3fn).contiguous(),
          factors.reciprocal().reshape(block_scale_shape(weight.sizes(), block)).contiguous()};
}

}  // namespace megalith::hf
