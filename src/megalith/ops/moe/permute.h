// Rows in another order: the copies of tokens that a mixture of experts makes for its experts, and the weighted sums of
// what comes back. One pass over the rows each, forward and backward. Before that, the choices of tokens sorted by
// expert.
//
// Legend: t tokens, k copies of a token, r rows, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// Which row is a copy of which token; both directions, so that neither pass has to search or to add up atomically.
// On the device of the rows. Invariant: row[i][j] = n >= 0 implies token[n] = i, and no n stands in `row` twice.
struct RowMap {
  at::Tensor token;            // int64 [r]
  at::Tensor row;              // int64 [t, k]; -1: there is no such copy
  bool every_row_used = true;  // all of 0 … r-1 stand in `row`; the others are fillers, which no sum reads

  RowMap to(at::Device device) const { return {token.to(device), row.to(device), every_row_used}; }
  int64_t rows() const { return token.size(0); }
  int64_t tokens() const { return row.size(0); }
};
// The map of a permutation: row n is token order[n]. order int64 [n], on the CPU.
RowMap permutation_map(const at::Tensor& order);

// x [t, h] -> its copies [r, h]. Backward adds the gradients of a token's copies; a filler has none.
at::Tensor copy_rows(const at::Tensor& x, const RowMap& map);

// rows [r, h] -> residual + Σ_j weights[i][j] · rows[row[i][j]], [t, h]. `weights` [t, k] in fp32 (fp64 for fp64 rows);
// undefined: 1. `residual` [t, h]; undefined: 0.
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weights, const RowMap& map,
                    const at::Tensor& residual = {});

struct SortedChoices {
  RowMap map;        // a row for every choice: those of expert 0 first, in the order of the tokens
  at::Tensor first;  // int64 [E + 1]: expert e has rows first[e] … first[e+1]-1; on the device of the choices
};
// experts int64 [t, k], all in [0, count). No wait for the device.
SortedChoices sort_choices(const at::Tensor& experts, int64_t count);

}  // namespace megalith::ops
