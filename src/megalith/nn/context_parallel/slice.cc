// Slices by example: one sequence of 8 tokens over 2 ranks has 4 chunks.
//
//   whole           0 1 | 2 3 | 4 5 | 6 7
//   slices          rank 0: 0 1 6 7      rank 1: 2 3 4 5        equal work under a causal mask
//   joined_order    0 1 4 5 6 7 2 3: rows of the concatenated slices, in the order of the whole
#include "megalith/nn/context_parallel/slice.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/layout/zigzag.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

ops::SequenceLayout slice_layout(const ops::SequenceLayout& whole, int rank, int size) {
  if (size == 1 || whole.tokens() == 0) return whole;
  const at::Tensor positions = slice_tokens(whole.positions(at::kCPU), whole, rank, size);
  std::vector<int64_t> cumulative = whole.cumulative();
  for (int64_t& end : cumulative) end /= size;  // exact: zigzag_ranges has checked the lengths
  const auto slice =
      ops::SequenceLayout::from_cumulative(std::move(cumulative)).with_positions(positions, whole.max_position());
  if (!whole.has_coordinates()) return slice;
  const at::Tensor coordinates = slice_tokens(whole.coordinates(at::kCPU).t(), whole, rank, size);
  return slice.with_coordinates(coordinates.t().contiguous());
}

at::Tensor slice_tokens(const at::Tensor& tokens, const ops::SequenceLayout& whole, int rank, int size) {
  check(tokens.size(0) == whole.tokens(), "{} rows to slice for {} tokens", tokens.size(0), whole.tokens());
  if (size == 1) return tokens;
  std::vector<at::Tensor> pieces;
  for (const auto& [begin, end] : layout::zigzag_ranges(whole.cumulative(), size, rank))
    pieces.push_back(tokens.narrow(0, begin, end - begin));
  return pieces.empty() ? tokens : at::cat(pieces);
}

at::Tensor gather_slices(const at::Tensor& own, const ops::SequenceLayout& slice, const comm::Group& cp) {
  if (cp.size() == 1) return own;
  const at::Tensor all = all_gather_rows(own.contiguous(), cp, "context-parallel slices");
  return all.index_select(0, joined_order(slice, cp.size(), own.device()));
}

ops::SequenceLayout join_slices(const ops::SequenceLayout& slice, int ranks) {
  if (slice.tokens() == 0) return slice;
  return slice.derived(fmt::format("slices of {} ranks, joined", ranks), [&] {
    std::vector<int64_t> cumulative = slice.cumulative();
    for (int64_t& end : cumulative) end *= ranks;
    return ops::SequenceLayout::from_cumulative(std::move(cumulative));
  });
}

namespace {

// int64 [ranks · t], in the host's memory.
at::Tensor joined_order_on_host(const ops::SequenceLayout& slice, int ranks) {
  const int64_t tokens = slice.tokens();
  at::Tensor order = at::empty({ranks * tokens}, at::kLong);
  auto* out = order.mutable_data_ptr<int64_t>();
  const auto add_chunk = [&out](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) *out++ = first + i;
  };
  const auto& cumulative = slice.cumulative();
  // Zigzag: the first chunks of all ranks in ascending order, then their second chunks in descending order.
  for (size_t s = 0; s + 1 < cumulative.size(); ++s) {
    const int64_t begin = cumulative[s], chunk = (cumulative[s + 1] - begin) / 2;
    for (int64_t rank = 0; rank < ranks; ++rank) add_chunk(rank * tokens + begin, chunk);
    for (int64_t rank = ranks - 1; rank >= 0; --rank) add_chunk(rank * tokens + begin + chunk, chunk);
  }
  return order;
}

}  // namespace

at::Tensor joined_order(const ops::SequenceLayout& slice, int ranks, at::Device device) {
  if (slice.tokens() == 0) return at::empty({0}, at::TensorOptions(at::kLong).device(device));
  return slice.derived(fmt::format("order of {} slices on {}", ranks, device.str()),
                       [&] { return ops::to_device(joined_order_on_host(slice, ranks), device); });
}

}  // namespace megalith::nn
