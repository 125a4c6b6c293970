// Gathered attention: one all-gather of keys and values instead of a ring. Fewer and larger messages, but a rank holds
// the keys and values of all ranks while it computes. Backward gathers them again, so that between the passes each rank
// keeps only its own block.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "megalith/nn/context_parallel/attention_parts_internal.h"
#include "megalith/nn/context_parallel/ring_or_gathered_attention_internal.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// Collectives: all-gather of k | v in forward; the same again and a reduce-scatter of their fp32 gradients in backward.
struct GatheredAttention : Function<GatheredAttention> {
  struct State {
    ops::SequenceLayout slice;
    ops::AttentionOptions options;
    comm::Group group;

    const std::vector<PreparedPart>& parts(at::Device device) const {
      static const std::vector<PreparedPart> none;
      if (slice.tokens() == 0) return none;
      return slice.derived(fmt::format("gathered from {}, rank {}, on {}", group.size(), group.rank(), device.str()),
                           [&] { return prepared(gathered_parts(slice, group.rank(), group.size()), device); });
    }
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const State& state) {
    const at::Tensor own = at::cat({k, v}, 2);  // [t, g, d+e]
    PartialAttention sum(q, v.size(2), state.options);
    sum.add(state.parts(q.device()), gather_slices(own, state.slice, state.group));
    ops::AttentionResult result = sum.result();
    ctx->save_for_backward({q, own, result.out, result.log_sum_exp});
    ops::save_state(ctx, state);
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const State& state = ops::saved_state<State>(ctx);
    const at::Tensor &q = saved[0], &own = saved[1];
    PartialAttentionBackward sum(grads[0], q, {saved[2], saved[3]}, state.options);
    const at::Tensor whole =
        sum.add(state.parts(q.device()), gather_slices(own, state.slice, state.group));  // [t cp, g, d+e]
    // From the order of the sequences back to that of the ranks, as reduce-scatter needs it.
    at::Tensor by_rank = at::empty_like(whole);
    by_rank.index_copy_(0, joined_order(state.slice, state.group.size(), whole.device()), whole);
    const at::Tensor grad =
        reduce_scatter_rows(by_rank, state.group, "gradients of keys and values").to(own.scalar_type());
    const int64_t d = q.size(2), e = own.size(2) - d;
    return {sum.grad_q(), grad.narrow(2, 0, d), grad.narrow(2, d, e), {}};
  }
};

}  // namespace

at::Tensor gathered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                              const comm::Group& tokens) {
  return GatheredAttention::apply(q, k, v, GatheredAttention::State{slice, options, tokens});
}

}  // namespace megalith::nn
