// Each function of the header's table is a small autograd function around a collective. The pairs are adjoint: the
// backward of a gather is a scatter or a reduce-scatter, that of a copy an all-reduce, and vice versa.
//
// A gather, as a linear map, gives every rank all shards; its transpose adds, for each shard, the gradients of all
// ranks. So a wrong pair shows as a gradient that is tp times too large, or that has the part of one rank only.
//
// Shards are in tp-rank order along the first dimension, where a collective places them without a copy; columns are
// gathered as rows of blocks and permuted afterwards.
#include "megalith/nn/tensor_parallel/mappings.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor all_gather_rows(const at::Tensor& shard, const comm::Group& group, const char* label) {
  auto shape = shard.sizes().vec();
  shape[0] *= group.size();
  at::Tensor whole = at::empty(shape, shard.options());
  group.all_gather(whole, shard.contiguous(), label);
  return whole;
}

at::Tensor reduce_scatter_rows(const at::Tensor& whole, const comm::Group& group, const char* label) {
  auto shape = whole.sizes().vec();
  check(shape[0] % group.size() == 0, "{} tokens cannot be split over the {} ranks of a tensor-parallel group",
        shape[0], group.size());
  shape[0] /= group.size();
  at::Tensor shard = at::empty(shape, whole.options());
  group.reduce_scatter(shard, whole.contiguous(), comm::ReduceOp::kSum, label);
  return shard;
}

at::Tensor all_gather_columns(const at::Tensor& columns, const comm::Group& group, const char* label) {
  if (group.size() == 1) return columns;
  const at::Tensor blocks = all_gather_rows(columns.unsqueeze(0), group, label);  // [tp, t, c/tp]
  return blocks.transpose(0, 1).reshape({columns.size(0), -1});
}

namespace {

// Returns a view of this rank's shard; the caller copies it if the whole should be freed.
at::Tensor own_rows(const at::Tensor& whole, const comm::Group& group) {
  check(whole.size(0) % group.size() == 0, "{} tokens cannot be split over the {} ranks of a tensor-parallel group",
        whole.size(0), group.size());
  const int64_t rows = whole.size(0) / group.size();
  return whole.narrow(0, rows * group.rank(), rows);
}

// After the gather each rank continues with weights of its own (kSum), or all compute the same (kSame).
struct GatherTokens : Function<GatherTokens> {
  struct State {
    comm::Group tp;
    GatheredGrad grad;
  };
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& shard, const State& state) {
    ops::save_state(ctx, state);
    return all_gather_rows(shard, state.tp, "gather_tokens");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<State>(ctx);
    if (state.grad == GatheredGrad::kSame) return {own_rows(grads[0], state.tp).contiguous(), {}};
    return {reduce_scatter_rows(grads[0], state.tp, "gather_tokens backward"), {}};
  }
};

struct ScatterTokens : Function<ScatterTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& whole, const comm::Group& tp) {
    ops::save_state(ctx, tp);
    return own_rows(whole, tp).clone();  // a view would keep all tokens alive
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {all_gather_rows(grads[0], ops::saved_state<comm::Group>(ctx), "scatter_tokens backward"), {}};
  }
};

// The end of a row-parallel layer under sequence parallelism: one collective instead of an all-reduce and a slice, with
// half of its traffic.
struct ReduceScatterTokens : Function<ReduceScatterTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& partial, const comm::Group& tp) {
    ops::save_state(ctx, tp);
    return reduce_scatter_rows(partial, tp, "reduce_scatter_tokens");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {all_gather_rows(grads[0], ops::saved_state<comm::Group>(ctx), "reduce_scatter_tokens backward"), {}};
  }
};

// The start of a column-parallel layer: the same input meets different columns on every rank, so that its gradient is
// the sum over the ranks.
struct CopyToRanks : Function<CopyToRanks> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& whole, const comm::Group& tp) {
    ops::save_state(ctx, tp);
    return whole.alias();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::Tensor sum = grads[0].clone(at::MemoryFormat::Contiguous);  // the incoming gradient may be used elsewhere
    ops::saved_state<comm::Group>(ctx).all_reduce(sum, comm::ReduceOp::kSum, "copy_to_ranks backward");
    return {sum, {}};
  }
};

// The end of a row-parallel layer: every rank gets the sum, and continues in the same way. So each already has the
// whole gradient, and backward needs no collective.
struct ReduceFromRanks : Function<ReduceFromRanks> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& partial, const comm::Group& tp) {
    at::Tensor sum = partial.clone(at::MemoryFormat::Contiguous);
    tp.all_reduce(sum, comm::ReduceOp::kSum, "reduce_from_ranks");
    return sum;
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], {}}; }
};

// Every rank continues in the same way with all columns: own columns of an equal gradient.
struct GatherColumns : Function<GatherColumns> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& columns, const comm::Group& tp) {
    ops::save_state(ctx, tp);
    return all_gather_columns(columns, tp, "gather_columns");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& tp = ops::saved_state<comm::Group>(ctx);
    const int64_t columns = grads[0].size(-1) / tp.size();
    return {grads[0].narrow(-1, columns * tp.rank(), columns).contiguous(), {}};
  }
};

}  // namespace

at::Tensor gather_tokens(const at::Tensor& shard, const comm::Group& tp, GatheredGrad grad) {
  return tp.size() == 1 ? shard : GatherTokens::apply(shard, GatherTokens::State{tp, grad});
}
at::Tensor scatter_tokens(const at::Tensor& whole, const comm::Group& tp) {
  return tp.size() == 1 ? whole : ScatterTokens::apply(whole, tp);
}
at::Tensor reduce_scatter_tokens(const at::Tensor& partial, const comm::Group& tp) {
  return tp.size() == 1 ? partial : ReduceScatterTokens::apply(partial, tp);
}
at::Tensor copy_to_ranks(const at::Tensor& whole, const comm::Group& tp) {
  return tp.size() == 1 ? whole : CopyToRanks::apply(whole, tp);
}
at::Tensor reduce_from_ranks(const at::Tensor& partial, const comm::Group& tp) {
  return tp.size() == 1 ? partial : ReduceFromRanks::apply(partial, tp);
}
at::Tensor gather_columns(const at::Tensor& columns, const comm::Group& tp) {
  return tp.size() == 1 ? columns : GatherColumns::apply(columns, tp);
}

}  // namespace megalith::nn
