// The choice of experts and the order of their rows.
#include <limits>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/grouped_gemm_internal.h"
#include "megalith/ops/moe/permute.h"
#include "megalith/ops/moe/permute_internal.h"
#include "megalith/ops/moe/top_experts_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

using Score = ExpertChoice::Score;

struct ExpertsCase {
  int64_t tokens, experts;
  ExpertChoice choice;
  bool with_bias = false;
};

// Every number of logits a lane, every kind of score, in groups and not; one token, many, none. Softmax over at most 8
// of 32, 64, 128 and 256 experts has kernels of its own.
std::vector<ExpertsCase> cases() {
  std::vector<ExpertsCase> result{{1, 8, {.topk = 8}},     {0, 8, {.topk = 2}},   {5, 1024, {.topk = 32}},
                                  {0, 64, {.topk = 2}},    {70, 64, {.topk = 8}}, {1, 32, {.topk = 32}},
                                  {20, 128, {.topk = 12}}, {3, 128, {.topk = 1}}};
  for (const int64_t experts : {8, 32, 64, 96, 128, 256, 512})
    for (const Score score : {Score::kSoftmaxOfChosen, Score::kSoftmax, Score::kSigmoid}) {
      const ExpertChoice plain{.topk = 6, .score = score, .normalize = experts != 64, .scaling = 1.5};
      ExpertChoice grouped = plain;
      grouped.groups = 8;
      grouped.group_topk = 6;
      grouped.group_best = experts == 8 ? 1 : 2;
      result.push_back({9, experts, plain});
      result.push_back({6, experts, grouped, true});
    }
  return result;
}
std::string name_of(const ExpertsCase& c) {
  return fmt::format("{} of {} experts, score {}, {} groups", c.choice.topk, c.experts,
                     static_cast<int>(c.choice.score), c.choice.groups);
}

struct Chosen {
  Tensor experts, weights, grad_logits;
};
Chosen reference(const ExpertsCase& c, const Tensor& logits, const Tensor& bias, const Tensor& decided,
                 const Tensor& grad) {
  const Tensor leaf = logits.to(at::kDouble).requires_grad_();
  const TopExperts top = top_experts(leaf, c.choice, bias.defined() ? bias.to(at::kDouble) : bias, decided);
  if (c.tokens > 0) (top.weights * grad).sum().backward();
  const Tensor slope = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  return {top.experts, top.weights.detach().to(at::kFloat), slope.to(logits.scalar_type())};
}

void expect_choice(const ExpertsCase& c, at::ScalarType dtype, bool decided) {
  Random random;
  const Tensor logits = random({c.tokens, c.experts}, dtype), grad = random({c.tokens, c.choice.topk});
  const Tensor bias = c.with_bias ? random({c.experts}) * 0.1 : Tensor();
  const Tensor chosen = reference(c, logits, bias, {}, grad).experts;
  const Chosen expected = reference(c, logits, bias, chosen, grad);
  const ExpertRows rows{dtype, c.tokens, c.experts, in(logits), c.choice};
  const auto cuda = [&](void* stream) {
    const Tensor experts = decided ? chosen.clone() : at::full_like(chosen, -7);
    const Tensor weights = unset(chosen.sizes(), at::kFloat), slope = unset(logits.sizes(), dtype);
    top_experts_cuda(rows, floats(bias), decided, numbers(experts), floats(weights), stream);
    top_experts_backward_cuda(rows, numbers(experts), floats(grad), out(slope), stream);
    return Tensors{experts, weights, slope};
  };
  const Tensors actual = in_every_order(cuda, name_of(c));
  EXPECT_TRUE(actual[0].equal(expected.experts)) << name_of(c);
  expect_close(actual[1], expected.weights, name_of(c));
  expect_close(actual[2], expected.grad_logits, name_of(c));
}

TEST(CudaExperts, Choice) {
  for (const ExpertsCase& c : cases()) expect_choice(c, at::kFloat, false);  // logits of fewer bits tie
}
TEST(CudaExperts, WeightsOfWhatWasDecided) {
  for (const ExpertsCase& c : cases())
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) expect_choice(c, dtype, true);
}

// A bias, of zeros here, is for the general kernel: both choose the same, where logits tie and where too few are
// numbers.
TEST(CudaExperts, PlainChoiceAsTheGeneralOne) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [experts, k] :
       std::vector<std::pair<int64_t, int64_t>>{{32, 6}, {64, 8}, {64, 1}, {128, 6}, {256, 7}})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Random random;
      const int64_t t = 45;
      Tensor logits = random({t, experts}, dtype).mul_(2).round_();  // zeros of both signs
      logits[3].fill_(1);
      logits[4].slice(0, 5).fill_(nan);
      logits[5].slice(0, 9, experts).fill_(-infinity);
      logits[6].slice(0, 3, experts).fill_(-infinity);
      logits[7].fill_(-infinity);
      logits[8].fill_(nan);
      logits[9].slice(0, 1, experts, 2).fill_(nan);
      const Tensor zeros = at::zeros({experts});
      const ExpertRows rows{dtype, t, experts, in(logits), {.topk = k, .scaling = 2.5}};
      const auto choose = [&](const Tensor& bias, void* stream) {
        const Tensor chosen = at::full({t, k}, -7, at::kLong), weights = unset({t, k}, at::kFloat);
        top_experts_cuda(rows, floats(bias), false, numbers(chosen), floats(weights), stream);
        return Tensors{chosen, weights};
      };
      const std::string what = fmt::format("{} of {} experts", k, experts);
      const Tensors plain = in_every_order([&](void* stream) { return choose({}, stream); }, what);
      const Tensors general = choose(zeros, nullptr);
      EXPECT_TRUE(plain[0].equal(general[0])) << what;
      EXPECT_TRUE(plain[1].allclose(general[1], 1e-5, 1e-6, /*equal_nan=*/true)) << what;
    }
}

TEST(CudaExperts, RowsInOrder) {
  for (const int64_t t : {0, 1, 100, 3000})
    for (const int64_t experts : {1, 3, 64, 300, 1024}) {
      Random random;
      const int64_t k = 3, n = t * k;
      const Tensor chosen = random.integers(experts, {t, k});
      const auto cuda = [&](void* stream) {
        const Tensor token = at::full({n}, -7, at::kLong), row = token.clone();
        const Tensor first = at::zeros({experts + 1}, at::kLong);
        const Tensor workspace = at::full({sort_choices_workspace_cuda(n, experts)}, -7, at::kInt);
        sort_choices_cuda(numbers(chosen), n, k, experts, numbers(token), numbers(row), numbers(first),
                          workspace.mutable_data_ptr<int>(), stream);
        return Tensors{token, row, first};
      };
      const std::string what = fmt::format("{} tokens, {} experts", t, experts);
      const Tensors actual = in_every_order(cuda, what);
      const SortedChoices expected = sort_choices(chosen, experts);
      EXPECT_TRUE(actual[0].equal(expected.map.token)) << what;
      EXPECT_TRUE(actual[1].equal(expected.map.row.view(-1))) << what;
      EXPECT_TRUE(actual[2].equal(expected.first)) << what;
    }
}

TEST(CudaExperts, ProductsOfGroups) {
  Random random;
  const int64_t groups = 4;
  const Tensor ends = at::tensor({0, 9, 9, 20}, at::kInt);  // the first and the third have no rows
  for (const int64_t elements : {8, 64, 4104})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const double beta : {0.0, 1.0, 0.5}) {
        const Tensor products = random({groups, elements}, at::kBFloat16), before = random({groups, elements}, dtype);
        for (const int64_t empty : {0, 2}) products[empty].fill_(NAN);
        const Tensor counted = products.to(at::kFloat).nan_to_num(0);
        const Tensor expected = (beta == 0 ? counted : before.to(at::kFloat) * beta + counted).to(dtype);
        const auto cuda = [&](void* stream) {
          const Tensor dw = beta == 0 ? unset(before.sizes(), dtype) : before.clone();
          add_group_products_cuda({dtype, groups, elements, beta}, in(products), ends.const_data_ptr<int>(), out(dw),
                                  stream);
          return Tensors{dw};
        };
        const std::string name = fmt::format("{} elements of {}, beta {}", elements, c10::toString(dtype), beta);
        EXPECT_TRUE(in_every_order(cuda, name)[0].equal(expected)) << name;
      }
}

}  // namespace
}  // namespace megalith::ops
