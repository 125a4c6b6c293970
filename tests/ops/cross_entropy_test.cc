// Cross entropy over a vocabulary that ranks share, against its definition in fp64: losses, gradients, smoothing,
// z-loss, ignored labels, and the logits that backward overwrites.
#include "megalith/ops/loss/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using nlohmann::json;
using testing::expect_close;
using testing::expect_contains;
using testing::random_tensor;
using testing::Rank;
using testing::run_ranks;

comm::Group everyone(const Rank& r) {
  std::vector<int> ranks(static_cast<size_t>(r.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return r.world.group("tp", ranks);
}

// Rank r's columns of a vocabulary that is padded to tp · columns.
VocabRange part_of(int64_t vocabulary, int64_t columns, int rank) {
  const int64_t begin = std::min(vocabulary, rank * columns);
  return {.begin = begin, .end = std::min(vocabulary, begin + columns), .total = vocabulary};
}

struct LossAndGrad {
  Tensor loss, grad;
};

// The definition, in fp64: ATen's cross-entropy, whose smoothing is the same, plus the z-loss.
LossAndGrad define(const Tensor& logits, const Tensor& labels, const Tensor& weight, const CrossEntropyOptions& o) {
  const Tensor x = logits.detach().to(at::kDouble).requires_grad_();
  Tensor loss = at::cross_entropy_loss(x, labels, {}, at::Reduction::None, o.ignore_index, o.label_smoothing);
  const Tensor counted = (labels != o.ignore_index).to(at::kDouble);
  loss = loss + o.z_loss * x.logsumexp(1).square() * counted;
  (loss * weight).sum().backward();
  return {loss.detach(), x.grad()};
}

struct Problem {
  int64_t tokens = 13, vocabulary = 50;
  int tp = 1;
  int64_t padding = 0;  // columns more than needed, on each rank
  at::ScalarType dtype = at::kFloat;
  CrossEntropyOptions options;
  double tolerance = 1e-5;
  double size = 3;  // gradient of the logits
};

// Splits the same problem over tp ranks and compares losses and gradients with the definition.
void expect_definition(const Problem& p) {
  const Tensor logits = (random_tensor({p.tokens, p.vocabulary}, 1) * p.size).to(p.dtype);
  Tensor labels = at::arange(p.tokens, at::kLong).mul(7).remainder(p.vocabulary);
  for (int64_t i = 0; i < p.tokens; i += 3) labels[i] = p.options.ignore_index;
  const Tensor weight = random_tensor({p.tokens}, 2);
  const LossAndGrad expected = define(logits, labels, weight, p.options);
  const int64_t columns = (p.vocabulary + p.tp - 1) / p.tp + p.padding;
  run_ranks(p.tp, [&](const Rank& r) {
    const VocabRange range = part_of(p.vocabulary, columns, r.rank);
    const int64_t held = range.end - range.begin;
    // Padding holds what a bug would show: a value far above all logits.
    const Tensor mine = at::full({p.tokens, columns}, 1000, at::TensorOptions(p.dtype));
    mine.narrow(1, 0, held).copy_(logits.narrow(1, range.begin, held));
    mine.requires_grad_();
    const Tensor leaf = mine, x = mine * 1;  // not a leaf: leaves may not be overwritten
    const Tensor loss = cross_entropy(x, labels, range, everyone(r), p.options);
    EXPECT_EQ(loss.scalar_type(), p.dtype == at::kDouble ? at::kDouble : at::kFloat);
    expect_close(loss, expected.loss, std::min(p.tolerance, 1e-5), "loss");
    (loss * weight.to(loss.scalar_type())).sum().backward();
    const Tensor grad = leaf.grad();
    // Absolute, as the largest gradient may be on another rank.
    const double bound = p.tolerance * expected.grad.abs().max().item<double>();
    if (held > 0) {
      const Tensor difference = grad.narrow(1, 0, held).to(at::kDouble) - expected.grad.narrow(1, range.begin, held);
      EXPECT_LE(difference.abs().max().item<double>(), bound);
    }
    EXPECT_TRUE(grad.narrow(1, held, columns - held).eq(0).all().item<bool>());
  });
}

TEST(CrossEntropy, EqualsTheDefinitionOnAnyNumberOfRanks) {
  for (const int tp : {1, 2, 4})
    for (const double smoothing : {0.0, 0.1})
      for (const double z : {0.0, 0.01})
        for (const int64_t padding : {0, 5}) {
          SCOPED_TRACE(fmt::format("tp {}, smoothing {}, z {}, padding {}", tp, smoothing, z, padding));
          expect_definition({.tp = tp, .padding = padding, .options = {.label_smoothing = smoothing, .z_loss = z}});
        }
}

TEST(CrossEntropy, RowsLongerThanAChunk) {
  for (const int tp : {1, 2})
    expect_definition({.tokens = 5, .vocabulary = 9001, .tp = tp, .options = {.label_smoothing = 0.1, .z_loss = 0.01}});
}

TEST(CrossEntropy, ARankWithoutColumns) {
  expect_definition({.tokens = 7, .vocabulary = 3, .tp = 4, .options = {.label_smoothing = 0.2, .z_loss = 0.1}});
  expect_definition({.tokens = 7, .vocabulary = 1, .tp = 2});
}

TEST(CrossEntropy, OtherIgnoredLabel) { expect_definition({.tp = 2, .options = {.ignore_index = 0}}); }

TEST(CrossEntropy, Fp64IsExact) {
  expect_definition(
      {.tp = 2, .dtype = at::kDouble, .options = {.label_smoothing = 0.1, .z_loss = 0.01}, .tolerance = 1e-12});
}

// Losses of 16-bit logits are those of their values, to fp32 rounding; a gradient is rounded once, when it is stored:
// half a unit of 8 (bf16) or 11 (fp16) bits.
TEST(CrossEntropy, SixteenBitLogits) {
  for (const int tp : {1, 2}) {
    const CrossEntropyOptions options{.label_smoothing = 0.1, .z_loss = 0.01};
    expect_definition({.tp = tp, .dtype = at::kBFloat16, .options = options, .tolerance = 1.0 / 256});
    expect_definition({.tp = tp, .dtype = at::kHalf, .options = options, .tolerance = 1.0 / 2048});
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) { expect_definition({.tp = 2, .size = 1e4}); }

TEST(CrossEntropy, BatchesWithoutLabelsAndWithoutTokens) {
  run_ranks(2, [](const Rank& r) {
    const VocabRange range = part_of(8, 4, r.rank);
    const Tensor leaf = at::randn({3, 4}).requires_grad_(), none = at::empty({0, 4}).requires_grad_();
    const Tensor loss = cross_entropy(leaf * 1, at::full({3}, -100, at::kLong), range, everyone(r), {.z_loss = 1});
    EXPECT_TRUE(loss.eq(0).all().item<bool>());
    loss.sum().backward();
    EXPECT_TRUE(leaf.grad().eq(0).all().item<bool>());
    cross_entropy(none * 1, at::empty({0}, at::kLong), range, everyone(r), {}).sum().backward();
    EXPECT_EQ(none.grad().sizes(), none.sizes());
  });
}

// ---- Consuming the logits --------------------------------------------------------------------------------

TEST(CrossEntropy, BackwardOverwritesTheLogits) {
  run_ranks(1, [](const Rank& r) {
    const VocabRange range = part_of(8, 8, 0);
    const Tensor labels = at::tensor({1, 5, 2}, at::kLong);
    const Tensor leaf = at::randn({3, 8}).requires_grad_(), x = leaf * 1;
    const Tensor loss = cross_entropy(x, labels, range, everyone(r), {});
    const Tensor before = x.detach().clone();
    loss.sum().backward({}, /*retain_graph=*/true);
    EXPECT_FALSE(x.detach().equal(before));
    expect_close(x.detach(), leaf.grad(), 0);
    try {
      loss.sum().backward();
      FAIL() << "a second backward was not refused";
    } catch (const Error& error) {
      expect_contains(error.what(), "second time");
    }
  });
}

TEST(CrossEntropy, LogitsOfTwoLossesAreRefused) {
  run_ranks(1, [](const Rank& r) {
    const VocabRange range = part_of(8, 8, 0);
    const Tensor labels = at::tensor({1, 5, 2}, at::kLong), leaf = at::randn({3, 8}).requires_grad_(), x = leaf * 1;
    const Tensor first = cross_entropy(x, labels, range, everyone(r), {});
    const Tensor second = cross_entropy(x, labels, range, everyone(r), {});
    const Tensor other = x.exp();   // saves its output, not x
    const Tensor third = x.pow(3);  // saves x
    first.sum().backward({}, true);
    try {
      second.sum().backward({}, true);
      FAIL() << "consumed logits were used";
    } catch (const Error& error) {
      expect_contains(error.what(), "written to before its backward");
    }
    EXPECT_THROW(third.sum().backward(), c10::Error);  // autograd's own check sees it too
  });
}

TEST(CrossEntropy, WithoutGradientNothingIsConsumed) {
  run_ranks(1, [](const Rank& r) {
    const Tensor x = at::randn({3, 8}), before = x.clone();
    EXPECT_FALSE(cross_entropy(x, at::tensor({1, 5, 2}, at::kLong), part_of(8, 8, 0), everyone(r), {}).requires_grad());
    EXPECT_TRUE(x.equal(before));
  });
}

// Rows that are slices of longer ones, a gradient that is expanded from one number, labels with a stride.
TEST(CrossEntropy, TakesStridedArguments) {
  run_ranks(1, [](const Rank& r) {
    const VocabRange range = part_of(8, 8, 0);
    const Tensor labels = at::tensor({1, 0, 5, 0, 2, 0}, at::kLong).slice(0, 0, 6, 2);
    const Tensor data = random_tensor({3, 20}).to(at::kFloat);
    const LossAndGrad expected = define(data.narrow(1, 4, 8), labels, at::ones({3}), {});
    for (const bool transposed : {false, true}) {
      const Tensor leaf = (transposed ? data.t().contiguous() : data.clone()).requires_grad_(), all = leaf * 1;
      const Tensor x = transposed ? all.t().narrow(1, 4, 8) : all.narrow(1, 4, 8);
      const Tensor loss = cross_entropy(x, labels, range, everyone(r), {});
      expect_close(loss, expected.loss, 1e-6);
      loss.sum().backward();
      const Tensor grad = transposed ? leaf.grad().t() : leaf.grad();
      expect_close(grad.narrow(1, 4, 8), expected.grad, 1e-5);
      EXPECT_TRUE(grad.narrow(1, 0, 4).eq(0).all().item<bool>());
    }
  });
}

// The parts alone, chunk by chunk, as the projection with the loss inside uses them.
TEST(CrossEntropy, PartsWithoutAutograd) {
  run_ranks(2, [](const Rank& r) {
    const VocabRange range = part_of(30, 16, r.rank);
    const int64_t held = range.end - range.begin;
    const Tensor logits = random_tensor({10, 30}).to(at::kFloat), weight = random_tensor({10}, 2).to(at::kFloat);
    const Tensor labels = at::arange(10, at::kLong) * 3;
    const CrossEntropyOptions options{.z_loss = 0.1};
    const LossAndGrad expected = define(logits, labels, weight, options);
    for (const int64_t begin : {0, 4}) {
      const int64_t rows = begin == 0 ? 4 : 6;
      const auto piece = [&](const Tensor& x) { return x.narrow(0, begin, rows); };
      const Tensor x = at::constant_pad_nd(piece(logits).narrow(1, range.begin, held), {0, 16 - held}, 500);
      const CrossEntropyStats stats = cross_entropy_forward(x, piece(labels), range, everyone(r), options);
      expect_close(stats.loss, piece(expected.loss), 1e-6);
      expect_close(stats.log_sum_exp, piece(logits).logsumexp(1), 1e-6);
      cross_entropy_backward_(x, piece(labels), stats.log_sum_exp, piece(weight), range, options);
      expect_close(x.narrow(1, 0, held), piece(expected.grad).narrow(1, range.begin, held), 1e-5);
      EXPECT_TRUE(x.narrow(1, held, 16 - held).eq(0).all().item<bool>());
    }
  });
}

// ---- Refusals --------------------------------------------------------------------------------------------

template <typename E>
std::string refusal(const Tensor& logits, const Tensor& labels, const VocabRange& range, const comm::Group& tp,
                    const CrossEntropyOptions& options = {}) {
  try {
    cross_entropy(logits, labels, range, tp, options);
  } catch (const E& error) {
    return error.what();
  }
  return "not refused";
}

TEST(CrossEntropy, RefusesBadInput) {
  run_ranks(1, [](const Rank& r) {
    const comm::Group tp = everyone(r);
    const VocabRange range = part_of(8, 8, 0);
    const Tensor x = at::zeros({3, 8}), labels = at::tensor({1, 5, 2}, at::kLong);
    const std::string high = refusal<DataError>(x, at::tensor({1, 8, 2}, at::kLong), range, tp);
    expect_contains(high, "label of token 1 is 8");
    expect_contains(high, "ids 0 to 7");
    expect_contains(refusal<DataError>(x, at::tensor({-1, 2, 2}, at::kLong), range, tp), "label of token 0 is -1");
    expect_contains(refusal<ConfigError>(x, labels, range, tp, {.label_smoothing = 1}), "label_smoothing is 1");
    expect_contains(refusal<InternalError>(x, labels.to(at::kInt), range, tp), "int64 labels");
    expect_contains(refusal<InternalError>(x, labels, {0, 9, 9}, tp), "does not fit 8 columns");
    expect_contains(refusal<InternalError>(x.view({3, 2, 4}), labels, range, tp), "[tokens, columns]");
  });
}

TEST(CrossEntropy, NanComesOut) {
  run_ranks(1, [](const Rank& r) {
    const Tensor x = at::zeros({2, 8});
    x[1][3] = std::numeric_limits<float>::quiet_NaN();
    const Tensor loss = cross_entropy(x, at::tensor({1, 5}, at::kLong), part_of(8, 8, 0), everyone(r), {});
    EXPECT_FALSE(loss[0].isnan().item<bool>());
    EXPECT_TRUE(loss[1].isnan().item<bool>());
  });
}

// ---- Golden ----------------------------------------------------------------------------------------------

Tensor tensor_of(const json& nested, int64_t columns) {
  std::vector<float> values;
  const std::function<void(const json&)> flatten = [&](const json& j) {
    if (j.is_array())
      for (const json& x : j) flatten(x);
    else
      values.push_back(j.get<float>());
  };
  flatten(nested);
  return at::tensor(values).view({-1, columns});
}

// Losses and gradients, the logits split over as many ranks as the case says. With smoothing the values of one rank
// hold for every tp: the reference smooths over each rank's own part of the vocabulary, which is wrong.
TEST(GoldenVocabParallel, vocab_parallel_json_cross_entropy) {
  const json file = testing::golden_json("parallel/vocab_parallel.json");
  const json& cases = testing::golden_member(file, "cross_entropy");
  ASSERT_FALSE(cases.empty());
  for (size_t index = 0; index < cases.size(); ++index) {
    const json& c = cases.at(index);
    const int tp = c.at("tp").get<int>();
    const auto smoothing = c.value("label_smoothing", 0.0);
    SCOPED_TRACE(fmt::format("cross_entropy case {}: tp {}, label_smoothing {}", index, tp, smoothing));
    const auto vocabulary = static_cast<int64_t>(c.at("logits").at(0).at(0).size());
    const Tensor logits = tensor_of(c.at("logits"), vocabulary);
    const Tensor labels = tensor_of(c.at("target"), 1).flatten().to(at::kLong);
    const Tensor grad_output = tensor_of(c.at("grad_output"), 1).flatten();
    const Tensor loss = tensor_of(c.contains("loss_tp1") ? c.at("loss_tp1") : c.at("loss"), 1).flatten();
    const Tensor grad =
        tensor_of(c.contains("grad_logits_tp1") ? c.at("grad_logits_tp1") : c.at("grad_logits"), vocabulary);
    const int64_t columns = vocabulary / tp;
    run_ranks(tp, [&](const Rank& r) {
      const Tensor leaf = logits.narrow(1, r.rank * columns, columns).clone().requires_grad_();
      const Tensor got = cross_entropy(leaf * 1, labels, part_of(vocabulary, columns, r.rank), everyone(r),
                                       {.label_smoothing = smoothing * vocabulary / (vocabulary - 1)});
      expect_close(got, loss, 1e-5, "loss");
      got.backward(grad_output);
      const double bound = 1e-5 * grad.abs().max().item<double>();
      const Tensor difference = leaf.grad() - grad.narrow(1, r.rank * columns, columns);
      EXPECT_LE(difference.abs().max().item<double>(), bound) << "gradient on rank " << r.rank;
    });
  }
}

}  // namespace
}  // namespace megalith::ops
