// Expert dispatch and combine on one rank: sorts the choices of tokens by expert, copies tokens into rows in that
// order, and adds the weighted outputs of experts back to their tokens. Copies and sums take one pass over the rows
// each, forward and backward.
//
// Legend: t tokens, k copies per token, r rows, h hidden.
//
//   experts of tokens 0, 1, 2 (k = 2)    {0 2}  {0 1}  {1 2}
//   rows, by expert                      0: tokens 0 1 | 1: tokens 1 2 | 2: tokens 0 2
//   map.token                            0 1 1 2 0 2
//   map.row                              {0 4}  {1 2}  {3 5}
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// The relation of rows and tokens in both directions, so that no pass has to search or to add atomically. Lives on
// the device of the rows. Invariant: row[i][j] = n >= 0 implies token[n] = i, and no n occurs in `row` twice.
struct RowMap {
  at::Tensor token;            // int64 [r]
  at::Tensor row;              // int64 [t, k]; -1 where there is no copy
  bool every_row_used = true;  // all of 0 … r-1 occur in `row`; rows that do not are fillers, which no sum reads

  int64_t rows() const { return token.size(0); }
  int64_t tokens() const { return row.size(0); }
};
// Returns the map of a permutation: row n is token order[n]. `order` is int64 [n].
RowMap permutation_map(const at::Tensor& order);

// Copies the tokens x [t, h] into rows [r, h]. Backward adds the gradients of a token's copies; fillers have none.
at::Tensor copy_rows(const at::Tensor& x, const RowMap& map);

// Returns residual + Σ_j weights[i][j] · rows[row[i][j]], [r, h] -> [t, h]. `weights` is [t, k] in fp32 (fp64 for fp64
// rows), all 1 if undefined; `residual` is [t, h], 0 if undefined.
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weights, const RowMap& map,
                    const at::Tensor& residual = {});

// The choices of tokens in the order of experts.
struct SortedChoices {
  RowMap map;        // one row per choice: those of expert 0 first, in the order of the tokens
  at::Tensor first;  // int64 [E + 1]: expert e has rows first[e] … first[e+1]-1; on the device of the choices
};
// Sorts the choices of tokens by expert; the sort is stable. `experts` is int64 [t, k], all in [0, count). The host
// does not wait for the device.
SortedChoices sort_choices(const at::Tensor& experts, int64_t count);

// Rearranges blocks of consecutive rows: result[n] is the row, among the blocks laid out one after another, that comes
// n-th if they are laid out in the sequence `order` instead. `sizes` is int64 [b], the rows of each block; `order` is
// int64 [c], in which a block may occur any number of times; `rows` is the sum of the sizes in it. Both tensors are on
// one device, for which the host does not wait.
//
//   sizes 2 1 3, order 2 0 1     ->  3 4 5 | 0 1 | 2
at::Tensor rows_by_block(const at::Tensor& sizes, const at::Tensor& order, int64_t rows);

}  // namespace megalith::ops
