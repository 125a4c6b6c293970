// The collectives of tensor parallelism as differentiable functions. Each is one row of this table:
//
//   function                 forward                        backward
//   gather_tokens            [t/tp, h] -> [t, h]            reduce_scatter (kSum) or own slice (kSame)
//   scatter_tokens           [t, h] -> [t/tp, h], own slice all-gather
//   reduce_scatter_tokens    [t, h] -> [t/tp, h], summed    all-gather
//   copy_to_ranks            identity                       all-reduce
//   reduce_from_ranks        all-reduce                     identity
//   gather_columns           [t, c/tp] -> [t, c]            own columns
//
// All ranks of the group call them in the same order. A group of one rank returns its input.
// The linear layers have these collectives inside (linear_function.h), overlapped with their matrix products.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"

namespace megalith::nn {

// How the gradients of a gathered tensor relate between the ranks. kSum: each is a part of the true gradient, because
// each rank continued with its own weights. kSame: they are equal on all ranks.
enum class GatheredGrad { kSum, kSame };

at::Tensor gather_tokens(const at::Tensor& shard, const comm::Group& tp, GatheredGrad grad = GatheredGrad::kSum);
at::Tensor scatter_tokens(const at::Tensor& whole, const comm::Group& tp);
at::Tensor reduce_scatter_tokens(const at::Tensor& partial, const comm::Group& tp);
at::Tensor copy_to_ranks(const at::Tensor& whole, const comm::Group& tp);
at::Tensor reduce_from_ranks(const at::Tensor& partial, const comm::Group& tp);
at::Tensor gather_columns(const at::Tensor& columns, const comm::Group& tp);

// Collectives without autograd, for use inside autograd functions; `label` names them in traces.
at::Tensor all_gather_rows(const at::Tensor& shard, const comm::Group& group, const char* label);
at::Tensor reduce_scatter_rows(const at::Tensor& whole, const comm::Group& group, const char* label);
at::Tensor all_gather_columns(const at::Tensor& columns, const comm::Group& group, const char* label);

}  // namespace megalith::nn
