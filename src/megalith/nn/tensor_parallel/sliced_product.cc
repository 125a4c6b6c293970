// Every collective is started as early as its input allows, and waited for as late as its output allows. A group runs
// its collectives one after the other, so that slices arrive in their order.
#include "megalith/nn/tensor_parallel/sliced_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::nn {

namespace {

constexpr int64_t kMostSlices = 4;
constexpr int64_t kLeastResults = int64_t{4} << 20;  // least size of a slice on CUDA
constexpr int64_t kTileRows = 64;

// Returns an uninitialized tensor [rows, columns] of the type of `like`.
at::Tensor empty_matrix(const at::Tensor& like, int64_t rows, int64_t columns) {
  return at::empty({rows, columns}, like.options());
}

}  // namespace

int64_t slice_count(int64_t rows, int64_t ranks, int64_t columns, bool cuda, int64_t wanted) {
  const int64_t by_size = std::min(kMostSlices, cuda ? rows * ranks * columns / kLeastResults : rows);
  return std::clamp<int64_t>(wanted > 0 ? wanted : by_size, 1, std::max<int64_t>(rows, 1));
}

TokenSlices::TokenSlices(int64_t rows, int64_t ranks, int64_t count)
    : rows_(rows), ranks_(ranks), count_(count), unit_(rows >= kTileRows * count ? kTileRows : 1) {
  check(count >= 1 && count <= std::max<int64_t>(rows, 1) && ranks >= 1,
        "{} rows of {} ranks cannot be divided into {} slices", rows, ranks, count);
}

// Rounded down to a multiple of unit_: the last slice takes the remaining rows.
int64_t TokenSlices::first(int64_t slice) const {
  return slice == count_ ? rows_ : rows_ * slice / count_ / unit_ * unit_;
}

at::Tensor TokenSlices::of_shard(const at::Tensor& shard, int64_t slice) const {
  return shard.narrow(0, first(slice), rows(slice));
}

at::Tensor TokenSlices::of_tokens(const at::Tensor& whole, int64_t slice) const {
  return whole.unflatten(0, {ranks_, rows_}).narrow(1, first(slice), rows(slice));
}

at::Tensor TokenSlices::of_slices(const at::Tensor& sliced, int64_t slice) const {
  return sliced.narrow(0, ranks_ * first(slice), ranks_ * rows(slice)).unflatten(0, {ranks_, rows(slice)});
}

at::Tensor TokenSlices::in_slice_order(const at::Tensor& whole) const {
  at::Tensor sliced = at::empty(whole.sizes(), whole.options());
  for (int64_t k = 0; k < count_; ++k) of_slices(sliced, k).copy_(of_tokens(whole, k));
  return sliced;
}

void SlicedTransfer::wait() {
  for (comm::Work& slice : slices) slice.wait();
}

SlicedTransfer start_gather(const at::Tensor& shard, const TokenSlices& slices, const comm::Group& group,
                            const char* label) {
  const at::Tensor own = shard.contiguous();
  SlicedTransfer gather{empty_matrix(shard, slices.tokens(), shard.size(1)), {}};
  for (int64_t k = 0; k < slices.count(); ++k)
    gather.slices.push_back(
        group.all_gather_async(slices.of_slices(gather.result, k).flatten(0, 1), slices.of_shard(own, k), label));
  return gather;
}

SlicedTransfer start_scatter(const at::Tensor& partial, const TokenSlices& slices, const comm::Group& group,
                             const char* label) {
  SlicedTransfer scatter{empty_matrix(partial, slices.tokens() / group.size(), partial.size(1)), {}};
  for (int64_t k = 0; k < slices.count(); ++k)
    scatter.slices.push_back(group.reduce_scatter_async(
        slices.of_shard(scatter.result, k), slices.of_slices(partial, k).flatten(0, 1), comm::ReduceOp::kSum, label));
  return scatter;
}

GatheredProduct gather_and_multiply(const at::Tensor& shard, int64_t columns, const TokenSlices& slices,
                                    const comm::Group& group, const char* label, const BlockProduct& multiply,
                                    RowOrder order) {
  SlicedTransfer gather = start_gather(shard, slices, group, label);
  const at::Tensor output = empty_matrix(shard, slices.tokens(), columns);
  for (int64_t k = 0; k < slices.count(); ++k) {
    gather.slices[static_cast<size_t>(k)].wait();
    multiply(order == RowOrder::kSlices ? slices.of_slices(output, k) : slices.of_tokens(output, k),
             slices.of_slices(gather.result, k), k + 1 < slices.count() ? Beside::kCollective : Beside::kNothing);
  }
  return {gather.result, output};
}

at::Tensor multiply_and_scatter(const at::Tensor& in, int64_t columns, const TokenSlices& slices,
                                const comm::Group& group, const char* label, const BlockProduct& multiply,
                                RowOrder order) {
  const at::Tensor partial = empty_matrix(in, slices.tokens(), columns);  // in slice order
  const at::Tensor sum = empty_matrix(in, slices.tokens() / group.size(), columns);
  std::vector<comm::Work> scatters;
  for (int64_t k = 0; k < slices.count(); ++k) {
    const at::Tensor part = slices.of_slices(partial, k);
    multiply(part, order == RowOrder::kSlices ? slices.of_slices(in, k) : slices.of_tokens(in, k),
             k > 0 ? Beside::kCollective : Beside::kNothing);
    scatters.push_back(
        group.reduce_scatter_async(slices.of_shard(sum, k), part.flatten(0, 1), comm::ReduceOp::kSum, label));
  }
  for (comm::Work& scatter : scatters) scatter.wait();
  return sum;
}

}  // namespace megalith::nn
