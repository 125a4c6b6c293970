// A shard of a flat buffer may begin and end anywhere in a parameter, but a checkpoint stores tensors. A range of a
// flattened tensor is a union of few rectangles: a part of the first row, whole rows, a part of the last row, and so on
// for more dimensions. Fused parameters (q, k and v in one matrix) are then cut into the tensors they consist of.
#include "megalith/optim/model_space.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

// Returns the product of sizes[from], sizes[from + 1], …; 1 for none.
int64_t product(const std::vector<int64_t>& sizes, size_t from) {
  return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(from), sizes.end(), int64_t{1},
                         std::multiplies<>());
}

// Appends the rectangles of [begin, end) within the sub-tensor at `prefix` (indices of the leading dimensions), whose
// first element has flat index `base`. For a matrix:
//
//   . . . a a a     a: a part of the first row   (recursion)
//   b b b b b b     b: whole rows, one rectangle
//   b b b b b b
//   c c . . . .     c: a part of the last row    (recursion)
void append(const std::vector<int64_t>& shape, std::vector<int64_t> prefix, int64_t base, int64_t begin, int64_t end,
            std::vector<Rectangle>& out) {
  if (begin >= end) return;
  const size_t dim = prefix.size();
  const int64_t inner = product(shape, dim + 1);  // elements per index of this dimension
  const auto add = [&](int64_t first, int64_t count) {
    Rectangle r{.offset = prefix, .extent = std::vector<int64_t>(prefix.size(), 1), .begin = base + first * inner};
    r.offset.push_back(first);
    r.extent.push_back(count);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      r.offset.push_back(0);
      r.extent.push_back(shape[d]);
    }
    out.push_back(std::move(r));
  };
  if (inner == 1) return add(begin, end - begin);
  const auto descend = [&](int64_t index, int64_t from, int64_t to) {
    std::vector<int64_t> deeper = prefix;
    deeper.push_back(index);
    append(shape, std::move(deeper), base + index * inner, from, to, out);
  };
  // Whole indices are [first_whole, last_whole); first > last means that the range lies strictly inside one index.
  const int64_t first_whole = (begin + inner - 1) / inner, last_whole = end / inner;
  if (first_whole > last_whole) return descend(begin / inner, begin % inner, begin % inner + end - begin);
  if (begin % inner != 0) descend(begin / inner, begin % inner, inner);
  if (first_whole < last_whole) add(first_whole, last_whole - first_whole);
  if (end % inner != 0) descend(last_whole, 0, end % inner);
}

}  // namespace

std::vector<Rectangle> rectangles(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  check(!shape.empty() && begin >= 0 && end <= product(shape, 0), "elements {} to {} are not all in the tensor", begin,
        end);
  std::vector<Rectangle> out;
  append(shape, {}, 0, begin, end, out);
  return out;
}

std::vector<parallel::ShardedTensor> sharded_range(const nn::Parameter& parameter, int64_t begin, int64_t end,
                                                   const at::Tensor& flat, const std::string& prefix, int replica) {
  std::vector<parallel::ShardedTensor> result;
  for (const Rectangle& r : rectangles(parameter.value.sizes().vec(), begin, end)) {
    const int64_t numel = product(r.extent, 0);
    const at::Tensor rectangle = flat.narrow(0, r.begin - begin, numel).view(r.extent);
    for (const nn::ParameterPart& part : parameter.spec.parts) {
      // Intersect the rectangle with the part, in coordinates of the parameter. Parts are stacked along dimension 0:
      // part.row is the first row of this one.
      at::Tensor local = rectangle;
      std::vector<int64_t> offset = part.offset;
      for (size_t d = 0; d < r.extent.size() && local.defined(); ++d) {
        const int64_t start = d == 0 ? part.row : 0;
        const int64_t from = std::max(r.offset[d], start);
        const int64_t to = std::min(r.offset[d] + r.extent[d], start + part.extent[d]);
        offset[d] += from - start;
        local = from < to ? local.narrow(static_cast<int64_t>(d), from - r.offset[d], to - from) : at::Tensor();
      }
      if (local.defined()) result.push_back({prefix + part.name, part.global_shape, offset, local, replica});
    }
  }
  return result;
}

}  // namespace megalith::optim
