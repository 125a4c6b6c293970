// The balancing loss of sequences that differ in length, against Megatron-Core's formula.
#include "megalith/nn/moe/balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/nn/moe/routing.h"
#include "tests/nn/nn_support.h"
#include "tests/support/close.h"
#include "tests/support/run_ranks.h"

namespace megalith::nn {
namespace {

using testing::expect_close;

constexpr int64_t kLength = 8, kSequences = 3, kExperts = 4, kTopk = 2;

// As Megatron computes it: sequences side by side in the experts' dimension, divided by the square of the mean number
// of valid tokens. `scores` [t, E] and `valid` [t] with token = position · sequences + sequence.
at::Tensor megatron_loss(const at::Tensor& scores, const at::Tensor& valid) {
  const at::Tensor mask = valid.to(at::kFloat).unsqueeze(1);
  const at::Tensor counts = (balance_counts(scores.detach(), kTopk) * mask).view({kLength, -1}).sum(0);
  const at::Tensor tokens = counts.sum() / (kTopk * kSequences);
  const at::Tensor sums = (scores * mask).view({kLength, -1}).sum(0);
  return (sums * counts).sum() * kExperts / (kTopk * tokens * tokens) / kSequences;
}

// Positions from `lengths` on are padding.
at::Tensor valid_tokens(const std::vector<int64_t>& lengths) {
  const at::Tensor positions = at::arange(kLength, at::kLong).unsqueeze(1);
  return (positions < at::tensor(lengths, at::kLong)).view({-1});
}

TEST(BalanceLoss, OfSequencesWithUnequalPaddingIsMegatrons) {
  const RouterShape shape{.experts = kExperts, .topk = kTopk};
  const at::Tensor logits = random_tensor({kLength * kSequences, kExperts}, 3);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{8, 8, 8}, {8, 5, 2}, {1, 8, 0}}) {
    const at::Tensor valid = valid_tokens(lengths);
    const at::Tensor leaf = logits.clone().requires_grad_();
    const at::Tensor expected = megatron_loss(balance_scores(leaf, shape), valid);
    expected.backward();
    for (const int ranks : {1, 2})
      testing::run_ranks(ranks, [&](const testing::Rank& r) {
        const int64_t tokens = logits.size(0) / ranks, first = r.rank * tokens;
        const at::Tensor mine = logits.narrow(0, first, tokens).clone().requires_grad_();
        const BalanceScope scope{.group = r.world.world(),
                                 .sequence = at::arange(first, first + tokens, at::kLong).remainder(kSequences),
                                 .sequences = kSequences,
                                 .valid = valid.narrow(0, first, tokens)};
        const at::Tensor scores = balance_scores(mine, shape);
        const at::Tensor loss = balance_loss(scores, count_choices(scores, shape, scope), shape, scope);
        loss.backward();
        expect_close(mine.grad(), leaf.grad().narrow(0, first, tokens), "gradient", 1e-5);
        const at::Tensor sum = loss.detach().clone();
        r.world.world().all_reduce(sum, comm::ReduceOp::kSum, "loss");
        expect_close(sum, expected.detach(), "loss", 1e-5);
      });
  }
}

}  // namespace
}  // namespace megalith::nn
