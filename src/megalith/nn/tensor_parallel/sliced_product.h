// Products that overlap with the collectives of sequence parallelism: tokens travel in slices, and while one slice is
// multiplied, the next one is gathered or the one before it is summed and scattered.
//
//   gather_and_multiply     communication   gather 0 | gather 1 | gather 2 | gather 3 |
//                           computation                product 0  product 1  product 2  product 3
//
//   multiply_and_scatter    computation     product 0  product 1  product 2  product 3
//                           communication              | scatter 0 | scatter 1 | scatter 2 | scatter 3
//
// Only the first gather and the last scatter are exposed, as long as a product lasts longer than a collective.
//
// Slice k has rows [first(k), first(k) + rows(k)) of every rank's shard. Gathered, that is one block of rows per rank,
// and these blocks lie a shard apart in a tensor of all tokens. For two ranks and two slices:
//
//   token order     | r0 k0 | r0 k1 | r1 k0 | r1 k1 |    as all other tensors have it: rank by rank
//   slice order     | r0 k0 | r1 k0 | r0 k1 | r1 k1 |    as collectives read and write it: slice by slice
//
// A product reads blocks in one order and writes them in the other (ops/gemm/block_gemm.h), so nothing is copied. Where
// tokens may have any order between two products, as inside an MLP, both keep the order of slices: then every slice is
// one matrix on both sides, and its product as fast as a whole one.
//
// Legend: t tokens, s = t/tp tokens of a shard, i and o columns of a product's input and output.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::nn {

// Returns the number of slices for a product [t, o] of which each of `ranks` ranks holds `rows` rows; 1 means that it
// is better left whole. `wanted` is the user's number, which holds as far as there are rows; 0 means by size:
//
//   At most 4: with more, the gain of a smaller first slice is lost to latencies. On CUDA a slice has at least 4 Mi
//   results, which is a wave of 128 x 256 tiles on 128 multiprocessors: below it a product leaves part of the GPU idle.
//   The CPU has no waves to fill: any slice of one row per rank will do.
int64_t slice_count(int64_t rows, int64_t ranks, int64_t columns, bool cuda, int64_t wanted = 0);

// How the rows of all shards are divided into slices: as evenly as possible, in whole multiples of 64 rows where there
// are enough of them, since tiles of products would be partly empty otherwise. The same on all ranks.
class TokenSlices {
 public:
  // `rows` of each of `ranks` shards in `count` slices, 1 <= count <= max(rows, 1).
  TokenSlices(int64_t rows, int64_t ranks, int64_t count);

  int64_t count() const { return count_; }
  int64_t tokens() const { return rows_ * ranks_; }
  int64_t first(int64_t slice) const;
  int64_t rows(int64_t slice) const { return first(slice + 1) - first(slice); }

  // Views of one slice: of a shard [s, …] -> [rows, …], of a tensor in token order or in slice order
  // [t, …] -> [ranks, rows, …].
  at::Tensor of_shard(const at::Tensor& shard, int64_t slice) const;
  at::Tensor of_tokens(const at::Tensor& whole, int64_t slice) const;
  at::Tensor of_slices(const at::Tensor& sliced, int64_t slice) const;

  // Returns a copy of a tensor in token order, in slice order.
  at::Tensor in_slice_order(const at::Tensor& whole) const;

 private:
  int64_t rows_, ranks_, count_;
  int64_t unit_;  // slices begin at multiples of this many rows
};

// The order of rows in the tensor of all tokens on the other side of a product than its collective.
enum class RowOrder { kTokens, kSlices };

// Whether a collective is in flight while a product is computed.
enum class Beside { kNothing, kCollective };
// Writes the product of `in` [blocks, rows, i] to `out` [blocks, rows, o].
using BlockProduct = std::function<void(const at::Tensor& out, const at::Tensor& in, Beside beside)>;

// A product of gathered rows.
struct GatheredProduct {
  at::Tensor input;   // [t, i] of all ranks, in slice order
  at::Tensor output;  // [t, o] in the order asked for
};

// Gathers `shard` [s, i] of all ranks and multiplies it. Every rank of `group` calls it with the same slices.
GatheredProduct gather_and_multiply(const at::Tensor& shard, int64_t columns, const TokenSlices& slices,
                                    const comm::Group& group, const char* label, const BlockProduct& multiply,
                                    RowOrder output = RowOrder::kTokens);

// Multiplies `in` [t, i] and returns this rank's rows of the sum over the ranks, [s, o].
at::Tensor multiply_and_scatter(const at::Tensor& in, int64_t columns, const TokenSlices& slices,
                                const comm::Group& group, const char* label, const BlockProduct& multiply,
                                RowOrder input = RowOrder::kTokens);

// The same collectives alone, with all tokens in the order of slices. `result` is valid after wait().
struct SlicedTransfer {
  at::Tensor result;
  std::vector<comm::Work> slices;
  void wait();
};
SlicedTransfer start_gather(const at::Tensor& shard, const TokenSlices& slices, const comm::Group& group,
                            const char* label);
SlicedTransfer start_scatter(const at::Tensor& partial, const TokenSlices& slices, const comm::Group& group,
                             const char* label);

}  // namespace megalith::nn
