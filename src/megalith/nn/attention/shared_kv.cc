// With g key/value heads and tp = g · p ranks, rank r uses head r / p. Every rank computes g·d/tp columns of the keys
// and values. Forward all-gathers these slices and picks one head; backward places the gradient of that head into zeros
// of all heads and reduce-scatters, which sums over the p ranks that used it and returns each slice to its owner.
//
//   g = 2, tp = 4 (p = 2)    rank 0        rank 1        rank 2        rank 3
//   computes                 k₀ low half   k₀ high half  k₁ low half   k₁ high half     (values likewise)
//   uses                     k₀            k₀            k₁            k₁
//
// Only the p ranks of a head need it; gathering over all of tp moves more than that, but takes no further groups.
#include "megalith/nn/attention/shared_kv.h"

#include <ATen/ATen.h>

#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// Queries pass through unchanged; keys and values change from slices of all heads to one whole head.
struct ExchangeKv : Function<ExchangeKv> {
  struct State {
    int64_t query_columns;  // n d
    int64_t head_dim;       // d
    int64_t kv_columns;     // g d: all key columns of the model
    int64_t head;           // the key/value head that this rank uses
    comm::Group tp;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const State& s) {
    ops::save_state(ctx, s);
    const int64_t tokens = qkv.size(0), slice = s.kv_columns / s.tp.size();
    const at::Tensor own = qkv.narrow(1, s.query_columns, 2 * slice).reshape({1, tokens, 2, slice});
    const at::Tensor all = all_gather_rows(own, s.tp, "key/value heads");  // [tp, t, 2, gd/tp]
    const at::Tensor heads = all.permute({1, 2, 0, 3}).reshape({tokens, 2, s.kv_columns});
    const at::Tensor used = heads.narrow(2, s.head * s.head_dim, s.head_dim).reshape({tokens, 2 * s.head_dim});
    return at::cat({qkv.narrow(1, 0, s.query_columns), used}, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& s = ops::saved_state<State>(ctx);
    const at::Tensor& d = grads[0];  // [t, nd + 2d]
    const int64_t tokens = d.size(0), slice = s.kv_columns / s.tp.size();
    at::Tensor heads = at::zeros({tokens, 2, s.kv_columns}, d.options());
    heads.narrow(2, s.head * s.head_dim, s.head_dim)
        .copy_(d.narrow(1, s.query_columns, 2 * s.head_dim).reshape({tokens, 2, s.head_dim}));
    const at::Tensor by_rank = heads.view({tokens, 2, s.tp.size(), slice}).permute({2, 0, 1, 3}).contiguous();
    const at::Tensor own = reduce_scatter_rows(by_rank, s.tp, "key/value heads backward");  // [1, t, 2, slice]
    return {at::cat({d.narrow(1, 0, s.query_columns), own.view({tokens, 2 * slice})}, 1), {}};
  }
};

}  // namespace

at::Tensor exchange_kv(const at::Tensor& qkv, const ops::QkvHeads& heads, int64_t model_kv_heads,
                       const comm::Group& tp) {
  const int64_t ranks_per_head = tp.size() / model_kv_heads;
  return ExchangeKv::apply(qkv, ExchangeKv::State{heads.query * heads.head_dim, heads.head_dim,
                                                  model_kv_heads * heads.head_dim, tp.rank() / ranks_per_head, tp});
}

}  // namespace megalith::nn
