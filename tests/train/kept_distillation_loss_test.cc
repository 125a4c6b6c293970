// The loss over a teacher's likeliest tokens against its definition in plain ATen (the tail as TRL's _add_tail_bucket
// makes it), and against the loss beside a live teacher where all tokens are kept.
#include "megalith/train/distillation/kept_distillation_loss.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using config::KdLoss;
using train::DistillationSettings;

constexpr int64_t kTokensOfBatch = 9, kIds = 11;
constexpr double kStart = 0.37;
constexpr double kNoise = 1e-7;  // a single class without a tail costs nothing

at::Tensor drawn(uint64_t seed, at::ScalarType type) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({kTokensOfBatch, kIds}, generator, at::kDouble).mul_(3).to(type);
}

comm::Group all_ranks(const Rank& r) {
  std::vector<int> ranks(static_cast<size_t>(r.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return r.world.group("tp", ranks);
}

ops::VocabRange columns_on(int rank, int64_t columns) {
  const int64_t begin = std::min(kIds, rank * columns);
  return {.begin = begin, .end = std::min(kIds, begin + columns), .total = kIds};
}

// KL(a || b) over classes.
at::Tensor kl_of(const at::Tensor& log_a, const at::Tensor& log_b) { return log_a.exp().mul(log_a - log_b).sum(1); }

// log_probs [t, k] -> [t, k + 1]: log(1 - Σ p), as TRL computes it but without its clamp.
at::Tensor with_tail_bucket(const at::Tensor& log_probs) {
  return at::cat({log_probs, at::log(-at::expm1(at::logsumexp(log_probs, 1, true)))}, 1);
}

// The divergence of two distributions over the teacher's k likeliest tokens, and all others if `how` says so.
at::Tensor by_definition(const at::Tensor& student, const at::Tensor& teacher, int64_t k,
                         const DistillationSettings& how) {
  const at::Tensor ids = std::get<1>(teacher.topk(k, 1));
  at::Tensor p = at::log_softmax(teacher / how.temperature, 1).gather(1, ids);
  at::Tensor q = at::log_softmax(student / how.temperature, 1).gather(1, ids);
  if (how.tail && k < kIds) {
    p = with_tail_bucket(p);
    q = with_tail_bucket(q);
  } else {
    p = p - at::logsumexp(p, 1, true);
    q = q - at::logsumexp(q, 1, true);
  }
  if (how.loss == KdLoss::kForwardKl) return kl_of(p, q);
  if (how.loss == KdLoss::kReverseKl) return kl_of(q, p);
  const at::Tensor mixture = at::logaddexp(q + std::log(1 - how.beta), p + std::log(how.beta));
  return kl_of(p, mixture) * how.beta + kl_of(q, mixture) * (1 - how.beta);
}

struct KeptProblem {
  at::Tensor student, teacher, labels;
  explicit KeptProblem(at::ScalarType type = at::kFloat)
      : student(drawn(1, type)),
        teacher(drawn(2, type)),
        labels(at::arange(kTokensOfBatch, at::kLong).mul(3).remainder(kIds)) {
    labels[0] = -100;
    labels[5] = -100;
  }
};

struct KeptResult {
  at::Tensor kd, lm, total, grad;
};

KeptResult define_kept(const KeptProblem& problem, int64_t k, const DistillationSettings& how) {
  const at::Tensor x = problem.student.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  const at::Tensor kd =
      by_definition(x, problem.teacher.to(at::kDouble), k, how).masked_fill(problem.labels == -100, 0);
  const at::Tensor lm = at::cross_entropy_loss(x, problem.labels, {}, at::Reduction::None, -100);
  const at::Tensor total = lm * (1 - how.ratio) + kd * how.ratio;
  (total.sum() * kStart).backward();
  return {kd.detach(), lm.detach(), total.detach(), x.grad()};
}

std::vector<DistillationSettings> kept_settings() {
  std::vector<DistillationSettings> all;
  for (const bool tail : {true, false})
    for (DistillationSettings how :
         {DistillationSettings{.loss = KdLoss::kForwardKl},
          DistillationSettings{.loss = KdLoss::kForwardKl, .temperature = 2, .ratio = 0.5},
          DistillationSettings{.loss = KdLoss::kReverseKl, .temperature = 0.7, .ratio = 0.25},
          DistillationSettings{.loss = KdLoss::kJsd, .beta = 0.1, .temperature = 1.5, .ratio = 0.7}}) {
      how.tail = tail;
      all.push_back(how);
    }
  return all;
}

std::string kept_name(const DistillationSettings& how, int64_t k) {
  return fmt::format("{} k {} tail {} temperature {} ratio {} classes {}", config::choice_name(how.loss), k, how.tail,
                     how.temperature, how.ratio, how.classes.value_or(0));
}

// Makes the classes that files keep, with the tail of the loss's temperature; the padding of a vocabulary is not in it.
train::KeptClasses kept_of(const at::Tensor& teacher, const ops::VocabRange& range, const comm::Group& tp, int64_t k,
                           const DistillationSettings& how) {
  const auto found = train::likeliest_tokens(teacher, range, tp, k, {1, how.temperature});
  return {.ids = found.ids,
          .log_probs = found.log_probs,
          .log_tail = how.tail && k < kIds ? found.log_tails.select(1, 1) : at::Tensor()};
}

// Runs a problem with `kept` of the teacher's tokens in the files, of which the loss uses `k`.
void expect_kept(const KeptProblem& problem, int tp, int64_t columns, int64_t kept, int64_t k, double tolerance) {
  for (DistillationSettings how : kept_settings()) {
    if (k < kept) how.classes = k;
    SCOPED_TRACE(kept_name(how, kept));
    const KeptResult expected = define_kept(problem, k, how);
    run_ranks(tp, [&](const Rank& r) {
      const ops::VocabRange range = columns_on(r.rank, columns);
      const int64_t held = range.end - range.begin;
      const auto part = [&](const at::Tensor& whole) {
        const at::Tensor mine = at::full({kTokensOfBatch, columns}, 1000, whole.options());
        mine.narrow(1, 0, held).copy_(whole.narrow(1, range.begin, held));
        return mine;
      };
      const comm::Group group = all_ranks(r);
      const train::KeptClasses classes = kept_of(part(problem.teacher), range, group, kept, how);
      const at::Tensor student = part(problem.student);
      for (const bool trains : {false, true}) {
        const auto terms = train::kept_distillation_terms_(student, classes, problem.labels, range, group, {}, how,
                                                           trains ? std::optional(kStart) : std::nullopt);
        expect_close(terms.kd, expected.kd, "kd", tolerance, kNoise);
        expect_close(terms.lm, expected.lm, "lm", tolerance);
        expect_close(terms.total, expected.total, "total", tolerance, kNoise);
        if (!trains) expect_identical(student, part(problem.student), "logits of an evaluation");
      }
      expect_close(student.narrow(1, 0, held), expected.grad.narrow(1, range.begin, held), "gradient", tolerance,
                   kNoise);
      EXPECT_EQ(student.narrow(1, held, columns - held).abs().sum().item<double>(), 0) << "padding";
    });
  }
}

TEST(KeptDistillationLoss, EqualsTheDefinition) {
  for (const int64_t k : {1, 4, 10, 11}) expect_kept(KeptProblem(), 1, kIds, k, k, 1e-5);
}
// Logits in fp64: what is left is the rounding of the fp32 numbers that stand for the files.
TEST(KeptDistillationLoss, EqualsTheDefinitionForLogitsInFp64) {
  expect_kept(KeptProblem(at::kDouble), 1, kIds, 4, 4, 2e-6);
}
// Two ranks, one of which has padding; then four, the last of which has little else.
TEST(KeptDistillationLoss, RanksShareTheVocabulary) {
  expect_kept(KeptProblem(), 2, 6, 4, 4, 1e-5);
  expect_kept(KeptProblem(), 4, 3, 4, 4, 1e-5);
  expect_kept(KeptProblem(), 6, 2, kIds, kIds, 1e-5);
  expect_kept(KeptProblem(), 6, 3, 1, 1, 1e-5);  // two ranks have nothing but padding
}
// Files of more tokens than the loss uses: the others join the tail, or are left out.
TEST(KeptDistillationLoss, UsesFewerTokensThanAreKept) {
  expect_kept(KeptProblem(), 1, kIds, 6, 2, 1e-5);
  expect_kept(KeptProblem(), 2, 6, kIds, 3, 1e-5);
  expect_kept(KeptProblem(), 1, kIds, kIds, kIds - 1, 1e-5);
}

TEST(KeptDistillationLoss, WithAllTokensIsTheLossBesideALiveTeacher) {
  const KeptProblem problem;
  for (const DistillationSettings& how : kept_settings())
    run_ranks(2, [&](const Rank& r) {
      SCOPED_TRACE(kept_name(how, kIds));
      const ops::VocabRange range = columns_on(r.rank, 6);
      const comm::Group group = all_ranks(r);
      const auto part = [&](const at::Tensor& whole) {
        return at::constant_pad_nd(whole, {0, 1}, 7).narrow(1, range.begin, 6).contiguous();
      };
      const at::Tensor live = part(problem.student), files = part(problem.student), teacher = part(problem.teacher);
      const auto expected = train::distillation_terms_({live, teacher}, problem.labels, range, group, {}, how, kStart);
      const auto actual = train::kept_distillation_terms_(files, kept_of(teacher, range, group, kIds, how),
                                                          problem.labels, range, group, {}, how, kStart);
      expect_close(actual.total, expected.total, "total", 1e-5);
      expect_close(files, live, "gradient", 1e-5);
    });
}

// Merging tokens into one class never increases a divergence.
TEST(KeptDistillationLoss, GrowsWithTheNumberOfClasses) {
  const KeptProblem problem;
  double last = 0;
  for (int64_t k = 1; k <= kIds; ++k) {
    const double kd = by_definition(problem.student, problem.teacher, k, {}).sum().item<double>();
    EXPECT_GE(kd, last - 1e-5);
    last = kd;
  }
}

TEST(KeptDistillationLoss, VanishesForTheTeacherItself) {
  const KeptProblem problem;
  for (const DistillationSettings& how : kept_settings()) {
    if (how.ratio < 1) continue;
    run_ranks(1, [&](const Rank& r) {
      const ops::VocabRange range = columns_on(0, kIds);
      const at::Tensor grads = problem.teacher.clone();
      const auto terms = train::kept_distillation_terms_(grads, kept_of(problem.teacher, range, all_ranks(r), 4, how),
                                                         problem.labels, range, all_ranks(r), {}, how, 1.0);
      EXPECT_LE(terms.kd.abs().max().item<double>(), 1e-6) << kept_name(how, 4);
      EXPECT_LE(grads.abs().max().item<double>(), 1e-6) << kept_name(how, 4);
    });
  }
}

// Log-probabilities rounded to 16 bits still make a distribution, so the teacher's own loss stays near 0.
TEST(KeptDistillationLoss, RoundedLogProbabilitiesStayADistribution) {
  const KeptProblem problem;
  const DistillationSettings how;
  run_ranks(1, [&](const Rank& r) {
    const ops::VocabRange range = columns_on(0, kIds);
    for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
      train::KeptClasses kept = kept_of(problem.teacher, range, all_ranks(r), 4, how);
      kept.log_probs = kept.log_probs.to(type).to(at::kFloat);
      const at::Tensor logits = problem.teacher.clone();
      const auto terms =
          train::kept_distillation_terms_(logits, kept, problem.labels, range, all_ranks(r), {}, how, std::nullopt);
      EXPECT_GE(terms.kd.min().item<double>(), -1e-6);
      EXPECT_LE(terms.kd.max().item<double>(), 1e-4);
    }
  });
}

// A teacher that is certain: its tail underflows, and so do most of its probabilities.
TEST(KeptDistillationLoss, IsFiniteWhereProbabilitiesVanish) {
  KeptProblem problem;
  problem.student.mul_(200);
  problem.teacher.mul_(-200);
  for (const DistillationSettings& how : kept_settings())
    run_ranks(1, [&](const Rank& r) {
      const ops::VocabRange range = columns_on(0, kIds);
      const at::Tensor grads = problem.student.clone();
      const auto terms = train::kept_distillation_terms_(grads, kept_of(problem.teacher, range, all_ranks(r), 4, how),
                                                         problem.labels, range, all_ranks(r), {}, how, 1.0);
      EXPECT_TRUE(terms.total.isfinite().all().item<bool>()) << kept_name(how, 4) << "\n" << terms.total;
      EXPECT_TRUE(grads.isfinite().all().item<bool>()) << kept_name(how, 4) << "\n" << grads;
    });
}

TEST(LikeliestTokens, AreThoseOfTheWholeVocabulary) {
  const at::Tensor logits = drawn(3, at::kFloat), log_probs = at::log_softmax(logits, 1);
  for (const auto& [tp, columns] : {std::pair(1, 11), std::pair(2, 6), std::pair(4, 3)})
    run_ranks(tp, [&](const Rank& r) {
      const ops::VocabRange range = columns_on(r.rank, columns);
      const int64_t held = range.end - range.begin;
      const at::Tensor mine = at::full({kTokensOfBatch, columns}, 1000, at::kFloat);
      mine.narrow(1, 0, held).copy_(logits.narrow(1, range.begin, held));
      const auto found = train::likeliest_tokens(mine, range, all_ranks(r), 5, {1, 2.5});
      const auto [values, ids] = log_probs.topk(5, 1);
      expect_identical(found.ids, ids, "ids");
      expect_close(found.log_probs, values, "log-probabilities", 1e-6);
      for (const int64_t column : {0, 1}) {
        const at::Tensor p = at::softmax(logits.to(at::kDouble) / (column == 0 ? 1 : 2.5), 1);
        expect_close(found.log_tails.select(1, column), (1 - p.gather(1, ids).sum(1)).log(), "tail", 1e-5);
      }
    });
}

}  // namespace
}  // namespace megalith::testing
