// Tokens for heads by one all-to-all. The columns of [t, r·c] are grouped by the rank that receives them; the rows that
// arrive are ordered by sender, and `order` brings them into the order of the joined sequences. The two directions are
// each other's inverse and, because they only permute, each other's gradient.
//
//   r = 2      rank 0: tokens A, heads 0 1       to_heads        rank 0: tokens A B, head 0
//              rank 1: tokens B, heads 0 1      ─────────►       rank 1: tokens A B, head 1
//
// A rank sends (r-1)/r of its data in each direction, whatever the length of the sequences.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "megalith/nn/context_parallel/head_all_to_all_internal.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// The exchange without autograd.
struct Trade {
  at::Tensor order;  // joined_order of the slice
  comm::Group group;

  at::Tensor to_heads(const at::Tensor& tokens) const {
    const int64_t t = tokens.size(0), r = group.size(), c = tokens.size(1) / r;
    const at::Tensor by_rank = tokens.view({t, r, c}).transpose(0, 1).contiguous();  // [r, t, c]
    const at::Tensor traded = at::empty_like(by_rank);
    group.all_to_all(traded, by_rank, {}, {}, "tokens for heads");
    return traded.view({r * t, c}).index_select(0, order);
  }
  at::Tensor to_tokens(const at::Tensor& heads) const {
    const int64_t r = group.size(), t = heads.size(0) / r, c = heads.size(1);
    const at::Tensor by_rank = at::empty({r * t, c}, heads.options()).index_copy_(0, order, heads);
    const at::Tensor traded = at::empty_like(by_rank);
    group.all_to_all(traded, by_rank, {}, {}, "heads for tokens");
    return traded.view({r, t, c}).transpose(0, 1).reshape({t, r * c});
  }
};

struct ToHeads : Function<ToHeads> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tokens, const Trade& trade) {
    ops::save_state(ctx, trade);
    return trade.to_heads(tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {ops::saved_state<Trade>(ctx).to_tokens(grads[0].contiguous()), {}};
  }
};

struct ToTokens : Function<ToTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& heads, const Trade& trade) {
    ops::save_state(ctx, trade);
    return trade.to_tokens(heads);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {ops::saved_state<Trade>(ctx).to_heads(grads[0].contiguous()), {}};
  }
};

Trade trade_of(const at::Tensor& x, const ops::SequenceLayout& slice, const comm::Group& group) {
  return {joined_order(slice, group.size(), x.device()), group};
}

}  // namespace

at::Tensor to_heads(const at::Tensor& tokens, const ops::SequenceLayout& slice, const comm::Group& group) {
  return ToHeads::apply(tokens.contiguous(), trade_of(tokens, slice, group));
}

at::Tensor to_tokens(const at::Tensor& heads, const ops::SequenceLayout& slice, const comm::Group& group) {
  return ToTokens::apply(heads.contiguous(), trade_of(heads, slice, group));
}

}  // namespace megalith::nn
