// The loss of distillation against TRL's formula in plain ATen: values, gradients, vocabularies that ranks share.
#include "megalith/train/distillation/distillation_loss.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using config::KdLoss;
using train::DistillationSettings;

constexpr int64_t kTokens = 9, kVocabulary = 7;

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble).mul_(3).to(type);
}

comm::Group everyone(const Rank& r) {
  std::vector<int> ranks(static_cast<size_t>(r.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return r.world.group("tp", ranks);
}

ops::VocabRange part_of(int64_t columns, int rank, int64_t vocabulary = kVocabulary) {
  const int64_t begin = std::min(vocabulary, rank * columns);
  return {.begin = begin, .end = std::min(vocabulary, begin + columns), .total = vocabulary};
}

// F.kl_div(log_q, log_p, log_target=True), summed over the vocabulary: KL(p || q).
at::Tensor kl(const at::Tensor& log_p, const at::Tensor& log_q) { return log_p.exp().mul(log_p - log_q).sum(1); }

// TRL's generalized_jsd_loss without its mean, step by step.
at::Tensor divergence_by_definition(const at::Tensor& student, const at::Tensor& teacher,
                                    const DistillationSettings& how) {
  const at::Tensor q = at::log_softmax(student / how.temperature, 1), p = at::log_softmax(teacher / how.temperature, 1);
  const bool mixes = how.loss == KdLoss::kJsd;
  if (how.loss == KdLoss::kForwardKl || (mixes && how.beta == 0)) return kl(p, q);
  if (how.loss == KdLoss::kReverseKl || (mixes && how.beta == 1)) return kl(q, p);
  const at::Tensor mixture = at::logsumexp(at::stack({q + std::log(1 - how.beta), p + std::log(how.beta)}), {0});
  return kl(p, mixture) * how.beta + kl(q, mixture) * (1 - how.beta);
}

struct Problem {
  at::Tensor student, teacher, labels;  // [t, v], [t, v], [t]
  explicit Problem(at::ScalarType type = at::kDouble)
      : student(normal({kTokens, kVocabulary}, 1, type)),
        teacher(normal({kTokens, kVocabulary}, 2, type)),
        labels(at::arange(kTokens, at::kLong).mul(3).remainder(kVocabulary)) {
    labels[0] = -100;
    labels[5] = -100;
  }
};

struct Defined {
  at::Tensor kd, lm, total, grad;  // [t], [t], [t], [t, v]
};

// By autograd of the definition; every token's total gets the gradient `start`.
Defined define(const Problem& problem, const DistillationSettings& how, double start) {
  const at::Tensor x = problem.student.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  const at::Tensor ignored = problem.labels == -100;
  const at::Tensor kd = divergence_by_definition(x, problem.teacher.to(at::kDouble), how).masked_fill(ignored, 0);
  const at::Tensor lm = at::cross_entropy_loss(x, problem.labels, {}, at::Reduction::None, -100);
  const at::Tensor total = lm * (1 - how.ratio) + kd * how.ratio;
  (total.sum() * start).backward();
  return {kd.detach(), lm.detach(), total.detach(), x.grad()};
}

const std::vector<DistillationSettings>& all_settings() {
  static const std::vector<DistillationSettings> all{
      {.loss = KdLoss::kForwardKl},
      {.loss = KdLoss::kForwardKl, .temperature = 2, .ratio = 0.5},
      {.loss = KdLoss::kReverseKl},
      {.loss = KdLoss::kReverseKl, .temperature = 0.7, .ratio = 0.25},
      {.loss = KdLoss::kJsd},
      {.loss = KdLoss::kJsd, .beta = 0.1, .temperature = 1.5, .ratio = 0.7},
      {.loss = KdLoss::kJsd, .beta = 0},
      {.loss = KdLoss::kJsd, .beta = 1},
  };
  return all;
}

std::string name_of(const DistillationSettings& how) {
  return fmt::format("{} beta {} temperature {} ratio {}", config::choice_name(how.loss), how.beta, how.temperature,
                     how.ratio);
}

// Splits the problem over `tp` ranks with `columns` each; columns beyond the vocabulary hold what a bug would show.
void expect_definition(const Problem& problem, int tp, int64_t columns, double tolerance) {
  constexpr double kStart = 0.37;
  for (const DistillationSettings& how : all_settings()) {
    SCOPED_TRACE(name_of(how));
    const Defined expected = define(problem, how, kStart);
    run_ranks(tp, [&](const Rank& r) {
      const ops::VocabRange range = part_of(columns, r.rank);
      const int64_t held = range.end - range.begin;
      const auto part = [&](const at::Tensor& whole) {
        const at::Tensor mine = at::full({kTokens, columns}, 1000, whole.options());
        mine.narrow(1, 0, held).copy_(whole.narrow(1, range.begin, held));
        return mine;
      };
      const at::Tensor student = part(problem.student), teacher = part(problem.teacher);
      const comm::Group group = everyone(r);
      for (const bool trains : {false, true}) {
        const auto terms = train::distillation_terms_({student, teacher}, problem.labels, range, group, {}, how,
                                                      trains ? std::optional(kStart) : std::nullopt);
        expect_close(terms.kd, expected.kd, "kd", tolerance);
        expect_close(terms.lm, expected.lm, "lm", tolerance);
        expect_close(terms.total, expected.total, "total", tolerance);
        if (!trains) expect_identical(student, part(problem.student), "logits of an evaluation");
      }
      expect_close(student.narrow(1, 0, held), expected.grad.narrow(1, range.begin, held), "gradient", tolerance);
      EXPECT_EQ(student.narrow(1, held, columns - held).abs().sum().item<double>(), 0) << "padding";
      expect_identical(teacher, part(problem.teacher), "the teacher's logits");
    });
  }
}

TEST(DistillationLoss, EqualsTheDefinitionInFp64) { expect_definition(Problem(), 1, kVocabulary, 1e-10); }
TEST(DistillationLoss, EqualsTheDefinitionInFp32) { expect_definition(Problem(at::kFloat), 1, 8, 1e-5); }
// Two ranks, one of which has padding; then four, the last of which has nothing else.
TEST(DistillationLoss, RanksShareTheVocabulary) {
  expect_definition(Problem(at::kFloat), 2, 4, 1e-5);
  expect_definition(Problem(at::kFloat), 4, 3, 1e-5);
}

// Logits are rounded in bf16, and so is what replaces them.
TEST(DistillationLoss, OverwritesLogitsOf16Bits) { expect_definition(Problem(at::kBFloat16), 2, 4, 1e-2); }

// Finite differences of the total, for a gradient that does not depend on autograd.
TEST(DistillationLoss, GradientsAreSlopes) {
  const Problem problem;
  constexpr double kStep = 1e-6;
  for (const DistillationSettings& how : all_settings()) {
    SCOPED_TRACE(name_of(how));
    run_ranks(1, [&](const Rank& r) {
      const comm::Group group = everyone(r);
      const ops::VocabRange range = part_of(kVocabulary, 0);
      const auto total = [&](const at::Tensor& logits) {
        return train::distillation_terms_({logits, problem.teacher}, problem.labels, range, group, {}, how,
                                          std::nullopt)
            .total;
      };
      const at::Tensor grads = problem.student.clone();
      train::distillation_terms_({grads, problem.teacher}, problem.labels, range, group, {}, how, 1.0);
      for (const int64_t column : {int64_t{0}, kVocabulary - 1}) {
        const at::Tensor up = problem.student.clone(), down = problem.student.clone();
        up.select(1, column).add_(kStep);
        down.select(1, column).sub_(kStep);
        expect_close(grads.select(1, column), (total(up) - total(down)) / (2 * kStep), "slope", 1e-6, 1e-8);
      }
    });
  }
}

// Distributions that hardly overlap: log-probabilities far below the smallest number of fp32.
TEST(DistillationLoss, IsFiniteWhereProbabilitiesVanish) {
  Problem problem(at::kFloat);
  problem.student.mul_(200);
  problem.teacher.mul_(-200);
  for (const DistillationSettings& how : all_settings())
    run_ranks(1, [&](const Rank& r) {
      const at::Tensor grads = problem.student.clone();
      const auto terms = train::distillation_terms_({grads, problem.teacher}, problem.labels, part_of(kVocabulary, 0),
                                                    everyone(r), {}, how, 1.0);
      EXPECT_TRUE(terms.total.isfinite().all().item<bool>()) << name_of(how) << "\n" << terms.total;
      EXPECT_TRUE(grads.isfinite().all().item<bool>()) << name_of(how) << "\n" << grads;
    });
}

// The same distribution costs nothing and pulls nowhere.
TEST(DistillationLoss, VanishesForTheTeacherItself) {
  const Problem problem(at::kFloat);
  for (const DistillationSettings& how : all_settings()) {
    if (how.ratio < 1) continue;
    run_ranks(1, [&](const Rank& r) {
      const at::Tensor grads = problem.teacher.clone();
      const auto terms = train::distillation_terms_({grads, problem.teacher}, problem.labels, part_of(kVocabulary, 0),
                                                    everyone(r), {}, how, 1.0);
      EXPECT_LE(terms.kd.abs().max().item<double>(), 1e-6) << name_of(how);
      EXPECT_LE(grads.abs().max().item<double>(), 1e-6) << name_of(how);
    });
  }
}

TEST(DistillationLoss, RefusesATeacherOfOtherTokens) {
  const Problem problem;
  run_ranks(1, [&](const Rank& r) {
    expect_error<InternalError>(
        [&] {
          train::distillation_terms_({problem.student, problem.teacher.narrow(0, 0, 4)}, problem.labels,
                                     part_of(kVocabulary, 0), everyone(r), {}, {}, std::nullopt);
        },
        {"4 tokens", "9 tokens"});
  });
}

}  // namespace
}  // namespace megalith::testing
