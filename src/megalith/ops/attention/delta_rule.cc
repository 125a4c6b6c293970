// The chunked form of the gated delta rule, in ATen's operations. Within a chunk the corrections depend on each other
// only through a triangular system; with L = strictly lower part of (beta K Kᵀ · decay between the two tokens):
//
//   (I + L) U = beta V,   (I + L) W = beta K · decay since the start        solved once for all chunks
//   written = U - W S,   out = (Q · decay since the start) S + scores written,   scores = Q Kᵀ · decay, causal
//   S ← whole decay · S + (K · decay to the end)ᵀ written                    one step per chunk
//
// So a sequence of s tokens takes s / chunk steps of matrix products instead of s steps of vectors. Chunks of the same
// step of all sequences are neighbors, with the longest sequences first: each step works on the first `active` of them.
#include "megalith/ops/attention/delta_rule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns [t, 1] in the dtype of x: 1 where token i has a token i - back in its sequence, else 0.
Tensor reaches_back(const SequenceLayout& layout, int64_t back, const Tensor& x) {
  Tensor mask = at::ones({x.size(0), 1}, x.options());
  for (size_t i = 0; i + 1 < layout.cumulative().size(); ++i) {
    const int64_t begin = layout.cumulative()[i], end = layout.cumulative()[i + 1];
    mask.narrow(0, begin, std::min(back, end - begin)).zero_();
  }
  return mask;
}

// The convolution as one shifted product per tap: kernels have few taps (4), and masks keep sequences apart.
struct CausalConv : torch::autograd::Function<CausalConv> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const std::vector<Tensor>& masks) {
    const int64_t taps = weight.size(1);
    variable_list saved{x, weight};
    saved.insert(saved.end(), masks.begin(), masks.end());
    ctx->save_for_backward(saved);
    Tensor y = x * weight.select(1, taps - 1);
    for (int64_t back = 1; back < std::min(taps, x.size(0)); ++back) {
      const int64_t rows = x.size(0) - back;
      const Tensor mask = masks[static_cast<size_t>(back - 1)].narrow(0, back, rows);
      y.narrow(0, back, rows).add_(x.narrow(0, 0, rows) * weight.select(1, taps - 1 - back) * mask);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    const int64_t taps = weight.size(1);
    Tensor dx = dy * weight.select(1, taps - 1);
    Tensor dw = at::zeros_like(weight);
    dw.select(1, taps - 1).copy_((dy * x).sum(0));
    for (int64_t back = 1; back < std::min(taps, x.size(0)); ++back) {
      const int64_t rows = x.size(0) - back, tap = taps - 1 - back;
      const Tensor seen = dy.narrow(0, back, rows) * saved[static_cast<size_t>(back) + 1].narrow(0, back, rows);
      dx.narrow(0, 0, rows).add_(seen * weight.select(1, tap));
      dw.select(1, tap).copy_((seen * x.narrow(0, 0, rows)).sum(0));
    }
    return {dx, dw, {}};
  }
};

// The distribution of the tokens of all sequences over chunks. Sequences with more chunks come first, so that those
// that are still active after i steps are the first few.
struct Chunks {
  int64_t size = 0;             // tokens per chunk
  int64_t count = 0;            // chunks of all sequences
  std::vector<int64_t> order;   // sequences, longest first
  std::vector<int64_t> active;  // by step: how many of them have a chunk
  Tensor tokens;                // int64 [count, size]: token of each place, t (one past the last) where there is none
  Tensor places;                // int64 [t]: place of each token in [count * size]
};

// Chunks are numbered step by step: first those of step 0 in `order`, then those of step 1, …
Chunks chunks_of(const SequenceLayout& layout, int64_t largest) {
  const auto& ends = layout.cumulative();
  const auto sequences = static_cast<size_t>(layout.sequences());
  const auto length = [&](int64_t s) { return ends[static_cast<size_t>(s) + 1] - ends[static_cast<size_t>(s)]; };
  Chunks chunks;
  chunks.size = std::min(largest, layout.longest());
  chunks.order.resize(sequences);
  std::iota(chunks.order.begin(), chunks.order.end(), 0);
  std::ranges::stable_sort(chunks.order, [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<int64_t> tokens, places(static_cast<size_t>(layout.tokens()));
  for (int64_t begin = 0; begin < layout.longest(); begin += chunks.size) {
    int64_t active = 0;
    for (const int64_t s : chunks.order) {
      if (length(s) <= begin) break;
      ++active;
      for (int64_t i = begin; i < begin + chunks.size; ++i) {
        const bool there = i < length(s);
        const int64_t token = there ? ends[static_cast<size_t>(s)] + i : layout.tokens();
        if (there) places[static_cast<size_t>(token)] = static_cast<int64_t>(tokens.size());
        tokens.push_back(token);
      }
    }
    chunks.active.push_back(active);
    chunks.count += active;
  }
  chunks.tokens = at::tensor(tokens, at::kLong).view({chunks.count, chunks.size});
  chunks.places = at::tensor(places, at::kLong);
  return chunks;
}

// Rearranges x [t, n, …] into [count, n, size, …], with zeros where a chunk has no token.
Tensor into_chunks(const Tensor& x, const Chunks& chunks) {
  auto row = x.sizes().vec();
  row[0] = 1;
  const Tensor padded = at::cat({x, at::zeros(row, x.options())}, 0);
  const Tensor picked = padded.index_select(0, to_device(chunks.tokens.view({-1}), x.device()));
  return picked.unflatten(0, {chunks.count, chunks.size}).transpose(1, 2).contiguous();
}

// The inputs of the steps from chunk to chunk; the first dimension is the chunk.
struct WithinChunks {
  Tensor q, k;         // [count, n, size, d], q with the decay since the start of the chunk, k with that to its end
  Tensor values;       // U [count, n, size, e]: what the chunk would write if the state before it were 0
  Tensor reads;        // W [count, n, size, d]: how the state before it changes that
  Tensor scores;       // [count, n, size, size]
  Tensor whole_decay;  // [count, n, 1, 1]
};

// Computes everything that does not depend on the state between chunks, for all chunks at once: the bulk of the work,
// in batched products. Autograd records it.
WithinChunks within_chunks(const DeltaRuleInput& in, const Chunks& chunks) {
  const at::ScalarType acc = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor q = into_chunks(in.q.to(acc), chunks), k = into_chunks(in.k.to(acc), chunks);
  const Tensor beta = into_chunks(in.beta.to(acc), chunks).unsqueeze(-1);
  const Tensor v_beta = into_chunks(in.v.to(acc), chunks) * beta, k_beta = k * beta;
  const Tensor decay = into_chunks(in.log_decay.to(acc), chunks).cumsum(-1);  // [count, n, size]
  const Tensor later = at::ones({chunks.size, chunks.size}, q.options().dtype(at::kBool)).triu(1);
  // exp(decay between two tokens), 0 where the second is later; masked before exp, which could overflow.
  const Tensor pairs =
      (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(later, -std::numeric_limits<double>::infinity()).exp();
  const Tensor system = k_beta.matmul(k.transpose(-1, -2)) * pairs;
  const auto solve = [&](const Tensor& right) {
    return at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  };
  const Tensor since_start = decay.exp().unsqueeze(-1), last = decay.narrow(-1, chunks.size - 1, 1);
  return {.q = q * since_start,
          .k = k * (last - decay).exp().unsqueeze(-1),
          .values = solve(v_beta),
          .reads = solve(k_beta * since_start),
          .scores = q.matmul(k.transpose(-1, -2)) * pairs,
          .whole_decay = last.exp().unsqueeze(-1)};
}

}  // namespace

Tensor causal_conv(const Tensor& x, const Tensor& weight, const SequenceLayout& layout) {
  check(x.dim() == 2 && weight.dim() == 2 && weight.size(0) == x.size(1) && x.size(0) == layout.tokens(),
        "causal_conv got weights of {} channels for {} tokens of {} channels and a layout of {} tokens; the numbers of "
        "channels and of tokens must agree",
        weight.size(0), x.size(0), x.size(1), layout.tokens());
  std::vector<Tensor> masks;
  for (int64_t back = 1; back < weight.size(1); ++back) masks.push_back(reaches_back(layout, back, x));
  return CausalConv::apply(x, weight, masks);
}

DeltaRuleOutput gated_delta_rule(const DeltaRuleInput& input, const SequenceLayout& layout, const Tensor& initial,
                                 int64_t chunk) {
  check(input.q.size(0) == layout.tokens() && layout.tokens() > 0,
        "gated_delta_rule got {} tokens for a layout of {}; they must agree and be at least 1", input.q.size(0),
        layout.tokens());
  const Chunks chunks = chunks_of(layout, chunk);
  const WithinChunks parts = within_chunks(input, chunks);
  const int64_t n = input.q.size(1), d = input.q.size(2), e = input.v.size(2);
  const Tensor order = to_device(at::tensor(chunks.order, at::kLong), input.q.device());
  Tensor state = initial.defined() ? initial.to(parts.q.scalar_type()).index_select(0, order)
                                   : at::zeros({layout.sequences(), n, d, e}, parts.q.options());
  std::vector<Tensor> outs, ended;  // states of sequences that have ended, the longest of them last
  int64_t first = 0;
  for (const int64_t active : chunks.active) {
    if (active < state.size(0)) {
      ended.push_back(state.narrow(0, active, state.size(0) - active));
      state = state.narrow(0, 0, active);
    }
    const auto now = [&](const Tensor& all) { return all.narrow(0, first, active); };
    const Tensor written = now(parts.values) - now(parts.reads).matmul(state);
    outs.push_back(now(parts.q).matmul(state) + now(parts.scores).matmul(written));
    state = state * now(parts.whole_decay) + now(parts.k).transpose(-1, -2).matmul(written);
    first += active;
  }
  ended.push_back(state);
  std::ranges::reverse(ended);
  const Tensor out = at::cat(outs, 0).transpose(1, 2).reshape({chunks.count * chunks.size, n, e});
  return {.out = out.index_select(0, to_device(chunks.places, out.device())),
          .state = at::cat(ended, 0).index_select(0, order.argsort())};
}

}  // namespace megalith::ops
