// Slices: the tokens of a micro-batch that a context-parallel rank holds (layout/zigzag.h).
//
// The slice of a layout is a SequenceLayout like any other: as many sequences, each of 1/cp of its tokens (two chunks
// one behind the other), with the positions of the whole. So a slice says by itself what the ranks hold together.
//
// Legend: t tokens of the slice; t·cp those of all ranks together.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// This rank's part of a layout. Throws DataError for a sequence whose length is no multiple of 2·size. A size of 1
// returns `whole` itself.
ops::SequenceLayout slice_layout(const ops::SequenceLayout& whole, int rank, int size);

// This rank's rows of [t·cp, …], laid out as `whole` says -> [t, …].
at::Tensor slice_tokens(const at::Tensor& tokens, const ops::SequenceLayout& whole, int rank, int size);

// The way back, without autograd: [t, …] of each rank -> [t·cp, …] on all, in the order of the whole.
at::Tensor gather_slices(const at::Tensor& own, const ops::SequenceLayout& slice, const comm::Group& cp);

// Slices of `ranks` neighbouring ranks joined: what all-to-all and all-gather bring together. Of all ranks it is the
// whole; of fewer (neighbours, as in hierarchical context parallelism) again a slice, over size / ranks ranks.
// Positions are not kept.
ops::SequenceLayout join_slices(const ops::SequenceLayout& slice, int ranks);
// int64 [ranks · t]: where the tokens of the joined slices stand among the rows of one rank after the other.
at::Tensor joined_order(const ops::SequenceLayout& slice, int ranks, at::Device device);

}  // namespace megalith::nn
