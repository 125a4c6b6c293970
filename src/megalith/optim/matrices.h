// Finds the matrices of a flat buffer, and plans which data-parallel rank orthogonalizes which of them. Every rank that
// holds parameters of the same sizes computes the same plan without communication.
//
//   buffer    | q | k | v | o | gate | up | down |     a parameter may consist of several matrices, each contiguous
//   shards    |   rank 0    |   rank 1    | …          cut anywhere: a rank owns elements, not matrices
//   owners      0   1   2   1     0     2    …         who orthogonalizes: whole matrices, about equal work for all
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megalith/optim/param_buffer.h"

namespace megalith::optim {

// One matrix that is orthogonalized by itself, and the block of it that this rank holds. Without tensor parallelism the
// block is the matrix.
struct Matrix {
  const nn::Parameter* parameter = nullptr;
  int bucket = 0;
  int64_t begin = 0;              // first element of the block in the buffer, where its rows follow each other
  int64_t rows = 0, columns = 0;  // sides of the block
  int64_t whole_rows = 0, whole_columns = 0;
  int split = -1;  // the dimension that is cut over tensor-parallel ranks, into equal blocks; -1 if none

  int64_t numel() const { return rows * columns; }
  int64_t end() const { return begin + numel(); }
  // Whether it can be orthogonalized in one call with another.
  bool same_shape(const Matrix& other) const;
};

// Returns the matrices of a buffer whose parameters are all matrices (nn::is_matrix), in the order of
// its parameters: each tensor that a checkpoint names is one. With `join_qkv` the query, key and value of a fused
// parameter are a single matrix.
std::vector<Matrix> matrices_of(const ParamBuffer& buffer, bool join_qkv);

// The work that a plan divides.
struct MatrixCost {
  double flop = 0;       // operations of the iteration on the rank that does it
  int64_t elements = 0;  // elements of the block
};

// By owner: the indices of the matrices that it orthogonalizes in a round.
using MatrixRound = std::vector<std::vector<int>>;

// Gives each matrix to one of `owners` ranks, the most expensive first, each to the rank that has least so far. In a
// round each owner takes matrices until they have `limit` elements, at least one, so that memory stays bounded.
std::vector<MatrixRound> plan_rounds(std::span<const MatrixCost> costs, int owners, int64_t limit);

}  // namespace megalith::optim
