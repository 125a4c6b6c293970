// The gated delta rule by chunks against its definition, token by token, and the causal convolution against a loop.
#include "megalith/ops/attention/delta_rule.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/close.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::expect_close;

Tensor random_leaf(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat).to(dtype).requires_grad_();
}

// Returns arguments of the function from leaves of any size: unit keys, decays below 0, beta in (0, 1).
DeltaRuleInput input_of(const std::vector<Tensor>& leaves) {
  const auto unit = [](const Tensor& x) { return x / x.norm(2, -1, true); };
  return {.q = unit(leaves[0]) * 0.5,
          .k = unit(leaves[1]),
          .v = leaves[2],
          .log_decay = -at::softplus(leaves[3]),
          .beta = leaves[4].sigmoid()};
}

std::vector<Tensor> leaves_of(int64_t t, int64_t n, int64_t d, int64_t e) {
  return {random_leaf({t, n, d}, 1), random_leaf({t, n, d}, 2), random_leaf({t, n, e}, 3), random_leaf({t, n}, 4),
          random_leaf({t, n}, 5)};
}

// One token after the other, in fp64.
DeltaRuleOutput by_definition(const DeltaRuleInput& in, const std::vector<int64_t>& lengths, const Tensor& initial) {
  std::vector<Tensor> outs, states;
  int64_t t = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    Tensor state = initial.defined() ? initial[static_cast<int64_t>(s)].to(at::kDouble)
                                     : at::zeros({in.q.size(1), in.q.size(2), in.v.size(2)}, at::kDouble);
    for (int64_t i = 0; i < lengths[s]; ++i, ++t) {
      const Tensor k = in.k[t].unsqueeze(-1), q = in.q[t].unsqueeze(-1);  // [n, d, 1]
      state = state * in.log_decay[t].exp().view({-1, 1, 1});
      const Tensor wrong = in.v[t].unsqueeze(1) - k.transpose(1, 2).matmul(state);  // [n, 1, e]
      state = state + k.matmul(wrong * in.beta[t].view({-1, 1, 1}));
      outs.push_back(q.transpose(1, 2).matmul(state).squeeze(1));
    }
    states.push_back(state);
  }
  return {at::stack(outs), at::stack(states)};
}

void expect_definition(const std::vector<int64_t>& lengths, int64_t chunk, bool with_initial) {
  SCOPED_TRACE(fmt::format("{} sequences, chunks of {}{}", lengths.size(), chunk, with_initial ? ", initial" : ""));
  const int64_t n = 3, d = 6, e = 5;
  const auto layout = SequenceLayout::packed(lengths);
  std::vector<Tensor> leaves = leaves_of(layout.tokens(), n, d, e), exact;
  Tensor initial, exact_initial;
  if (with_initial) {
    initial = random_leaf({layout.sequences(), n, d, e}, 9);
    exact_initial = initial.detach().to(at::kDouble).requires_grad_();
  }
  for (const Tensor& leaf : leaves) exact.push_back(leaf.detach().to(at::kDouble).requires_grad_());
  const DeltaRuleOutput out = gated_delta_rule(input_of(leaves), layout, initial, chunk);
  const DeltaRuleOutput expected = by_definition(input_of(exact), lengths, exact_initial);
  expect_close(out.out, expected.out, "out");
  expect_close(out.state, expected.state, "state");
  const Tensor dy = random_leaf(out.out.sizes(), 7).detach(), ds = random_leaf(out.state.sizes(), 8).detach();
  ((out.out * dy).sum() + (out.state * ds).sum()).backward();
  ((expected.out * dy).sum() + (expected.state * ds).sum()).backward();
  const char* const names[] = {"q", "k", "v", "log decay", "beta"};
  for (size_t i = 0; i < leaves.size(); ++i) expect_close(leaves[i].grad(), exact[i].grad(), names[i]);
  if (with_initial) expect_close(initial.grad(), exact_initial.grad(), "initial state");
}

TEST(GatedDeltaRule, EqualsItsDefinition) {
  for (const bool initial : {false, true}) {
    expect_definition({16, 16}, 64, initial);      // shorter than a chunk
    expect_definition({16, 16}, 4, initial);       // whole chunks
    expect_definition({13}, 4, initial);           // an unfinished one
    expect_definition({3, 11, 1, 8}, 4, initial);  // unequal: some end before others
    expect_definition({1}, 64, initial);
  }
}

// Two halves of a sequence, the second from the state that the first left.
TEST(GatedDeltaRule, ContinuesFromAState) {
  const at::NoGradGuard no_grad;
  const DeltaRuleInput all = input_of(leaves_of(20, 2, 4, 4));
  const DeltaRuleOutput whole = gated_delta_rule(all, SequenceLayout::dense(1, 20), {}, 8);
  Tensor state;
  for (int64_t first = 0, count = 13; first < 20; first += count, count = 1) {
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count); };
    const DeltaRuleOutput out =
        gated_delta_rule({part(all.q), part(all.k), part(all.v), part(all.log_decay), part(all.beta)},
                         SequenceLayout::dense(1, count), state, 8);
    expect_close(out.out, part(whole.out), "tokens from " + std::to_string(first));
    state = out.state;
  }
  expect_close(state, whole.state, "state");
}

TEST(CausalConv, EqualsALoopAndStaysInItsSequence) {
  const std::vector<int64_t> lengths{5, 1, 7, 2};
  const auto layout = SequenceLayout::packed(lengths);
  const int64_t c = 3;
  for (const int64_t taps : {1, 2, 4}) {
    const Tensor x = random_leaf({layout.tokens(), c}, 1), w = random_leaf({c, taps}, 2);
    const Tensor x64 = x.detach().to(at::kDouble).requires_grad_(), w64 = w.detach().to(at::kDouble).requires_grad_();
    std::vector<Tensor> rows;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i) {
        Tensor row = at::zeros({c}, at::kDouble);
        for (int64_t back = 0; back < std::min(taps, i + 1); ++back)
          row = row + x64[begin + i - back] * w64.select(1, taps - 1 - back);
        rows.push_back(row);
      }
      begin += length;
    }
    const Tensor expected = at::stack(rows), y = causal_conv(x, w, layout), dy = random_leaf(y.sizes(), 3).detach();
    expect_close(y, expected, "out");
    y.backward(dy);
    expected.backward(dy.to(at::kDouble));
    expect_close(x.grad(), x64.grad(), "gradient of the input");
    expect_close(w.grad(), w64.grad(), "gradient of the weight");
  }
}

}  // namespace
}  // namespace megalith::ops
