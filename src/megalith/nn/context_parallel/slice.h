// Slices: the tokens of a micro-batch that a context-parallel rank holds (layout/zigzag.h).
//
// The slice of a layout is an ordinary SequenceLayout: as many sequences, each with 1/cp of its tokens (two chunks, one
// after the other), and with the positions and coordinates of the whole. So the whole can be derived from a slice.
//
// Legend: t tokens of the slice; t·cp tokens of all ranks together.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// Returns this rank's slice of a layout; `whole` itself if size is 1. Throws DataError for a sequence whose length is
// not a multiple of 2·size.
ops::SequenceLayout slice_layout(const ops::SequenceLayout& whole, int rank, int size);

// Selects this rank's rows of [t·cp, …], laid out as `whole` -> [t, …].
at::Tensor slice_tokens(const at::Tensor& tokens, const ops::SequenceLayout& whole, int rank, int size);

// The inverse, without autograd: [t, …] of each rank -> [t·cp, …] on all ranks, in the order of the whole.
at::Tensor gather_slices(const at::Tensor& own, const ops::SequenceLayout& slice, const comm::Group& cp);

// Joins the slices of `ranks` neighboring ranks, as all-to-all and all-gather do. Joining all ranks gives the whole;
// joining fewer (hierarchical context parallelism) gives a slice again, over size / ranks ranks. Drops positions. Both
// results are made once per slice and kept by it: every layer asks for them.
ops::SequenceLayout join_slices(const ops::SequenceLayout& slice, int ranks);
// Returns int64 [ranks · t]: for each token of the joined slices, its row in the concatenation of the ranks' rows.
at::Tensor joined_order(const ops::SequenceLayout& slice, int ranks, at::Device device);

}  // namespace megalith::nn
