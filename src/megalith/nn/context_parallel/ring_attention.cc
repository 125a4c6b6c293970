// Ring attention (arXiv:2310.01889). In each of `ranks` steps a rank computes with the block of keys and values at
// hand, while it sends that block to the next rank and receives another from the previous one:
//
//   step       0        1        2        3
//   rank 0    kv 0     kv 3     kv 2     kv 1
//   rank 1    kv 1     kv 0     kv 3     kv 2      …
//
// Communication is hidden as long as the attention of a block takes longer than its transfer. Attention grows with the
// square of the slice, its transfer linearly, so that long slices hide it.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "megalith/nn/context_parallel/attention_parts_internal.h"
#include "megalith/nn/context_parallel/ring_or_gathered_attention_internal.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

int next_rank(const comm::Group& ring) { return (ring.rank() + 1) % ring.size(); }
int previous_rank(const comm::Group& ring) { return (ring.rank() + ring.size() - 1) % ring.size(); }

// Starts sending `outgoing` to the next rank and receiving `incoming` from the previous one.
comm::Work pass_on(const at::Tensor& outgoing, const at::Tensor& incoming, const comm::Group& ring, const char* label) {
  return ring.batch_async(
      {{comm::OpKind::kSend, outgoing, next_rank(ring)}, {comm::OpKind::kRecv, incoming, previous_rank(ring)}}, label);
}

// Calls visit(owner, block) with this rank's block, then with the blocks of the ranks before it, one by one. The next
// block is in flight meanwhile.
template <typename Visit>
void visit_blocks(at::Tensor block, const comm::Group& ring, const Visit& visit) {
  for (int step = 0; step < ring.size(); ++step) {
    const int owner = (ring.rank() + ring.size() - step) % ring.size();
    const bool last = step + 1 == ring.size();
    at::Tensor coming;
    comm::Work passing;
    if (!last) {
      coming = at::empty_like(block);
      passing = pass_on(block, coming, ring, "keys and values of ring attention");
    }
    visit(owner, block);
    passing.wait();  // the block may be dropped only once it has been sent
    block = coming;
  }
}

struct RingAttention : Function<RingAttention> {
  struct State {
    ops::SequenceLayout slice;
    ops::AttentionOptions options;
    comm::Group ring;

    const std::vector<PreparedPart>& parts(int owner, at::Device device) const {
      static const std::vector<PreparedPart> none;
      if (slice.tokens() == 0) return none;
      const int64_t window = options.window;
      return slice.derived(
          fmt::format("ring of {}, rank {}, owner {}, window {}, on {}", ring.size(), ring.rank(), owner, window,
                      device.str()),
          [&] { return prepared(ring_parts(slice, ring.rank(), owner, ring.size(), window), device); });
    }
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const State& state) {
    const at::Tensor own = at::cat({k, v}, 2);  // [t, g, d+e]
    PartialAttention sum(q, v.size(2), state.options);
    visit_blocks(own, state.ring,
                 [&](int owner, const at::Tensor& block) { sum.add(state.parts(owner, q.device()), block); });
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
    // The gradient of a block follows it around the ring, one step behind: each rank adds its share and passes it on.
    // The last pass returns it to the owner.
    at::Tensor outgoing, incoming;
    comm::Work passing;
    visit_blocks(own, state.ring, [&](int owner, const at::Tensor& block) {
      at::Tensor share = sum.add(state.parts(owner, q.device()), block);
      if (incoming.defined()) {
        passing.wait();
        share.add_(incoming);
      }
      outgoing = share;
      incoming = at::empty_like(outgoing);
      passing = pass_on(outgoing, incoming, state.ring, "gradients of ring attention");
    });
    passing.wait();
    const int64_t d = q.size(2), e = own.size(2) - d;
    const at::Tensor grad = incoming.to(own.scalar_type());
    return {sum.grad_q(), grad.narrow(2, 0, d), grad.narrow(2, d, e), {}};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                          const comm::Group& tokens) {
  return RingAttention::apply(q, k, v, RingAttention::State{slice, options, tokens});
}

}  // namespace megalith::nn
