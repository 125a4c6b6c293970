// The router's choice of experts: the general kernel, and the one for a plain softmax.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "megalith/ops/moe/top_experts.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, ChosenExpertsMatchTheCpu) {
  using Score = ExpertChoice::Score;
  for (const int64_t experts : {8, 64, 96, 256, 512})
    for (const auto score : {Score::kSoftmaxOfChosen, Score::kSoftmax, Score::kSigmoid})
      for (const bool grouped : {false, true}) {
        ExpertChoice choice{.topk = 6, .score = score, .normalize = score == Score::kSigmoid, .scaling = 1.5};
        if (grouped) {
          choice.groups = 8;
          choice.group_topk = 6;
          choice.group_best = experts == 8 ? 1 : 2;
        }
        const std::string what =
            fmt::format("{} experts, score {}, grouped {}", experts, static_cast<int>(score), grouped);
        const Tensor logits = random({33, experts}), bias = at::randn({experts}, generator_, at::kFloat) * 0.1;
        const Tensor decided = top_experts(logits, choice, bias).experts;
        compare(
            {logits},
            [&](const Tensors& in) {
              return Tensors{top_experts(in[0], choice, {}, decided.to(in[0].device())).weights};
            },
            what + ", decided");
        if (GetParam() != at::kFloat) continue;  // scores tie
        compare(
            {logits},
            [&](const Tensors& in) {
              const auto [chosen, weights] = top_experts(in[0], choice, bias.to(in[0].device()));
              EXPECT_TRUE(chosen.cpu().equal(decided)) << what;
              return Tensors{weights};
            },
            what);
      }
}

// Softmax over at most 8 experts, without a bias, has a kernel of its own; a bias of zeros is for the general one.
TEST_P(CudaKernel, ThePlainChoiceEqualsTheGeneralOne) {
  for (const int64_t experts : {32, 64, 128, 256})
    for (const int64_t k : {1, 5, 8}) {
      const std::string what = fmt::format("{} of {} experts", k, experts);
      const ExpertChoice choice{.topk = k, .scaling = 1.5};
      const Tensor logits = random({1027, experts});
      if (GetParam() == at::kFloat)  // others tie
        compare(
            {logits},
            [&](const Tensors& in) {
              const auto [chosen, weights] = top_experts(in[0], choice, {});
              EXPECT_TRUE(chosen.cpu().equal(top_experts(logits, choice, {}).experts)) << what;
              return Tensors{weights};
            },
            what);
      Tensor tied = (logits * 3).round_();  // zeros of both signs
      tied[1].fill_(2);
      tied[2].slice(0, k / 2).fill_(NAN);
      tied[3].slice(0, k).fill_(-INFINITY);
      tied[4].fill_(-INFINITY);
      const Tensor there = tied.to(at::kCUDA), zeros = at::zeros({experts}, there.options().dtype(at::kFloat));
      const TopExperts plain = top_experts(there, choice, {}), general = top_experts(there, choice, zeros);
      EXPECT_TRUE(plain.experts.equal(general.experts)) << what;
      EXPECT_TRUE(plain.weights.allclose(general.weights, 1e-5, 1e-6, /*equal_nan=*/true)) << what;
    }
}

}  // namespace
}  // namespace megalith::ops
