// Rotary embeddings: frequencies against transformers' formulas, angles by position, rotation against its definition,
// and the cut of queries, keys and values out of one projection.
#include "megalith/ops/norm_rope/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "megalith/base/error.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::all_dtypes;
using testing::evaluate;
using testing::expect_close;
using testing::expect_contains;
using testing::expect_matches;
using testing::random_tensor;
using testing::TensorList;
using testing::ThreadCount;
using testing::tolerance_of;

// ---- Frequencies ---------------------------------------------------------------------------------------------------

struct FrequencyCase {
  std::string name;
  RopeSettings settings;
  int64_t longest;
  std::map<size_t, float> expected;  // index: frequency
  double attention_factor;
};

// The numbers of transformers 5.22.2's ROPE_INIT_FUNCTIONS (torch 2.11.0, CPU).
std::vector<FrequencyCase> frequency_cases() {
  using enum RopeScaling;
  return {
      {"Default",
       {.rotary_dim = 128},
       4096,
       {{0, 1.0F},
        {1, 0.8659643530845642F},
        {16, 0.10000000149011612F},
        {32, 0.009999999776482582F},
        {63, 0.00011547819303814322F}},
       1},
      {"Partial", {.rotary_dim = 32}, 4096, {{1, 0.5623413324356079F}, {15, 0.00017782794020604342F}}, 1},
      {"Linear",
       {.rotary_dim = 64, .scaling = kLinear, .factor = 4},
       4096,
       {{0, 0.25F}, {1, 0.18747355043888092F}, {8, 0.02500000037252903F}, {31, 3.333803761051968e-05F}},
       1},
      {"DynamicShort",
       {.rotary_dim = 64, .scaling = kDynamic, .factor = 2, .original_positions = 2048},
       1000,
       {{1, 0.7498942017555237F}, {16, 0.009999999776482582F}, {31, 0.0001333521504420787F}},
       1},
      {"DynamicLong",
       {.rotary_dim = 64, .scaling = kDynamic, .factor = 2, .original_positions = 2048},
       8192,
       {{0, 1.0F},
        {1, 0.704269289970398F},
        {8, 0.06052156910300255F},
        {16, 0.0036628602538257837F},
        {31, 1.9050306946155615e-05F}},
       1},
      {"YarnMscales",  // DeepSeek
       {.rotary_dim = 64,
        .scaling = kYarn,
        .factor = 40,
        .original_positions = 4096,
        .mscale = 0.707,
        .mscale_all_dim = 1.0},
       163840,
       {{1, 0.7498942017555237F},
        {8, 0.10000000149011612F},
        {16, 0.005500000435858965F},
        {24, 2.499999936844688e-05F},
        {31, 3.3338035336782923e-06F}},
       0.9210423553163399},
      {"YarnEqualMscales",
       {.rotary_dim = 64,
        .scaling = kYarn,
        .factor = 40,
        .original_positions = 4096,
        .mscale = 1.0,
        .mscale_all_dim = 1.0},
       163840,
       {{16, 0.005500000435858965F}},
       1},
      {"Yarn",  // Qwen
       {.rotary_dim = 128, .theta = 1e6, .scaling = kYarn, .factor = 4, .original_positions = 32768},
       131072,
       {{1, 0.8058422207832336F},
        {16, 0.03162277862429619F},
        {32, 0.0006029411451891065F},
        {48, 7.905693564680405e-06F},
        {63, 3.102344408034696e-07F}},
       1.138629436111989},
      {"YarnNotTruncated",  // gpt-oss
       {.rotary_dim = 64,
        .theta = 150000,
        .scaling = kYarn,
        .factor = 32,
        .original_positions = 4096,
        .truncate = false},
       131072,
       {{8, 0.05081327259540558F}, {16, 0.0004564839182421565F}, {24, 4.099978468730114e-06F}},
       1.3465735902799727},
      {"YarnOwnFactor",
       {.rotary_dim = 64,
        .theta = 150000,
        .scaling = kYarn,
        .factor = 32,
        .original_positions = 4096,
        .attention_factor = 1.5},
       131072,
       {{16, 0.0005809474969282746F}},
       1.5},
      {"Llama3",
       {.rotary_dim = 128, .theta = 500000, .scaling = kLlama3, .factor = 8, .original_positions = 8192},
       131072,
       {{1, 0.8146172165870667F},
        {16, 0.03760603070259094F},
        {32, 0.0005248460220173001F},
        {48, 6.647869668086059e-06F},
        {63, 3.068925877869333e-07F}},
       1},
  };
}

TEST(RopeFrequencies, AreThoseOfTransformers) {
  for (const FrequencyCase& c : frequency_cases()) {
    SCOPED_TRACE(c.name);
    const std::vector<float> actual = rope_frequencies(c.settings, c.longest);
    ASSERT_EQ(actual.size(), static_cast<size_t>(c.settings.rotary_dim / 2));
    // One or two units in the last place: pow differs between machines.
    for (const auto& [i, expected] : c.expected) EXPECT_NEAR(actual[i], expected, 3e-7F * expected) << i;
    EXPECT_DOUBLE_EQ(rope_attention_factor(c.settings), c.attention_factor);
  }
}

TEST(RopeFrequencies, BadSettingsAreNamed) {
  const auto message = [](const RopeSettings& settings) -> std::string {
    try {
      rope_frequencies(settings, 10);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  using enum RopeScaling;
  expect_contains(message({.rotary_dim = 7}), "7 channels");
  expect_contains(message({.rotary_dim = 0}), "partial_rotary_factor");
  expect_contains(message({.rotary_dim = 8, .theta = 0}), "rope_theta is 0");
  expect_contains(message({.rotary_dim = 8, .scaling = kLinear, .factor = 0}), "factor in rope_parameters is 0");
  expect_contains(message({.rotary_dim = 8, .scaling = kYarn, .factor = 2}), "original_max_position_embeddings");
  expect_contains(message({.rotary_dim = 2, .scaling = kDynamic, .factor = 2, .original_positions = 8}), "dynamic");
  expect_contains(
      message({.rotary_dim = 8, .scaling = kLlama3, .factor = 2, .original_positions = 8, .high_freq_factor = 1}),
      "high_freq_factor");
}

// ---- Angles --------------------------------------------------------------------------------------------------------

TEST(RopeAngles, ArePositionTimesFrequency) {
  const RopeSettings settings{
      .rotary_dim = 8, .scaling = RopeScaling::kYarn, .factor = 4, .original_positions = 16, .attention_factor = 1.25};
  const auto layout = SequenceLayout::packed({3, 2});
  const RopeAngles angles = rope_angles(settings, layout, at::kCPU);
  const std::vector<float> theta = rope_frequencies(settings, 3);
  ASSERT_EQ(angles.cos.sizes(), (std::vector<int64_t>{5, 4}));
  const std::vector<float> positions{0, 1, 2, 0, 1};
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_FLOAT_EQ(angles.cos[t][i].item<float>(), 1.25F * std::cos(positions[t] * theta[i]));
      EXPECT_FLOAT_EQ(angles.sin[t][i].item<float>(), 1.25F * std::sin(positions[t] * theta[i]));
    }
}

TEST(RopeAngles, DynamicLooksAtTheLargestPosition) {
  const RopeSettings settings{.rotary_dim = 8, .scaling = RopeScaling::kDynamic, .factor = 2, .original_positions = 4};
  const auto far = SequenceLayout::dense(1, 1).with_positions(at::tensor({40}, at::kLong));
  const float expected = std::sin(40 * rope_frequencies(settings, 41)[1]);
  EXPECT_FLOAT_EQ(rope_angles(settings, far, at::kCPU).sin[0][1].item<float>(), expected);
}

TEST(RopeAngles, NoTokens) {
  EXPECT_EQ(rope_angles({.rotary_dim = 8}, SequenceLayout(), at::kCPU).cos.sizes(), (std::vector<int64_t>{0, 4}));
}

// The published divisions: in blocks, and interleaved with what is left over for time.
TEST(RopeSections, DivideThePairs) {
  const std::vector<int64_t> blocks = rope_axes({.rotary_dim = 128, .sections = {16, 24, 24}});
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(blocks[i], i < 16 ? 0 : i < 40 ? 1 : 2) << i;
  const std::vector<int64_t> dealt =
      rope_axes({.rotary_dim = 128, .sections = {24, 20, 20}, .interleaved_sections = true});
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(dealt[i], i < 60 ? static_cast<int64_t>(i % 3) : 0) << i;
  const std::vector<int64_t> uneven =
      rope_axes({.rotary_dim = 64, .sections = {11, 11, 10}, .interleaved_sections = true});
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(uneven[i], i % 3 == 2 && i >= 30 ? 0 : static_cast<int64_t>(i % 3)) << i;
}

TEST(RopeSections, PairsTurnByTheirCoordinate) {
  const RopeSettings settings{.rotary_dim = 12, .sections = {1, 2, 3}};
  const at::Tensor coordinates = at::tensor({0.0, 2.5, 7.0, 1.0, 3.0, 4.0, 2.0, 8.0, 9.0}, at::kFloat).view({3, 3});
  const RopeAngles angles = rope_angles(settings, SequenceLayout::dense(1, 3).with_coordinates(coordinates), at::kCPU);
  const std::vector<float> theta = rope_frequencies(settings, 3);
  const std::vector<int64_t> axes = rope_axes(settings);
  ASSERT_EQ(angles.cos.sizes(), (std::vector<int64_t>{3, 6}));
  EXPECT_TRUE(angles.cos.is_contiguous());
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t i = 0; i < 6; ++i) {
      const float angle = coordinates[axes[static_cast<size_t>(i)]][t].item<float>() * theta[static_cast<size_t>(i)];
      EXPECT_FLOAT_EQ(angles.cos[t][i].item<float>(), std::cos(angle));
      EXPECT_FLOAT_EQ(angles.sin[t][i].item<float>(), std::sin(angle));
    }
}

TEST(RopeSections, MustAddUpToThePairs) {
  const auto layout = SequenceLayout::dense(1, 2).with_coordinates(at::zeros({3, 2}, at::kLong));
  EXPECT_THROW(rope_angles({.rotary_dim = 8}, layout, at::kCPU), ConfigError);
  EXPECT_THROW(rope_angles({.rotary_dim = 8, .sections = {1, 1, 1}}, layout, at::kCPU), ConfigError);
  EXPECT_NO_THROW(rope_angles({.rotary_dim = 8, .sections = {2, 1, 1}}, layout, at::kCPU));
}

// ---- Rotation ------------------------------------------------------------------------------------------------------

RopeAngles angles_for(int64_t tokens, int64_t rotary_dim, bool interleaved) {
  RopeSettings settings{.rotary_dim = rotary_dim, .theta = 100, .interleaved = interleaved};
  return rope_angles(settings, tokens == 0 ? SequenceLayout() : SequenceLayout::dense(1, tokens), at::kCPU);
}

// The pairs of channels as complex numbers, turned. x [t, n, d].
Tensor rotate_definition(const Tensor& x, const RopeAngles& angles) {
  if (!angles.defined()) return x;
  const int64_t half = angles.cos.size(1);
  Tensor pairs = x.narrow(2, 0, 2 * half);
  pairs = angles.interleaved ? pairs.unflatten(2, {half, 2}) : pairs.unflatten(2, {2, half}).transpose(2, 3);
  const Tensor turn = at::complex(angles.cos.to(at::kDouble), angles.sin.to(at::kDouble)).unsqueeze(1);
  pairs = at::view_as_real(at::view_as_complex(pairs.contiguous()) * turn);
  pairs = angles.interleaved ? pairs.flatten(2) : pairs.transpose(2, 3).flatten(2);
  return at::cat({pairs, x.narrow(2, 2 * half, x.size(2) - 2 * half)}, 2);
}

struct RotationCase {
  int64_t head_dim, rotary_dim;
};
const RotationCase kRotations[] = {{64, 64}, {6, 6}, {80, 20}, {7, 2}};

TEST(ApplyRope, TurnsPairsOfChannels) {
  for (const auto [d, r] : kRotations)
    for (const bool interleaved : {false, true})
      for (const auto dtype : all_dtypes()) {
        SCOPED_TRACE(std::to_string(d) + " " + std::to_string(r) + (interleaved ? " interleaved " : " ") +
                     c10::toString(dtype));
        const RopeAngles angles = angles_for(5, r, interleaved);
        expect_matches([&](const TensorList& in) { return TensorList{apply_rope(in[0], angles)}; },
                       [&](const TensorList& in) { return TensorList{rotate_definition(in[0], angles)}; },
                       {random_tensor({5, 3, d})}, dtype, tolerance_of(dtype));
      }
}

// The composite form runs on devices without a kernel.
TEST(ApplyRope, CompositeTurnsPairsOfChannels) {
  for (const auto [d, r] : kRotations)
    for (const bool interleaved : {false, true})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const RopeAngles angles = angles_for(5, r, interleaved);
        expect_matches([&](const TensorList& in) { return TensorList{rotate_composite(in[0], angles)}; },
                       [&](const TensorList& in) { return TensorList{rotate_definition(in[0], angles)}; },
                       {random_tensor({5, 3, d})}, dtype, tolerance_of(dtype));
      }
}

TEST(ApplyRope, ReadsSlicesOfAnotherTensor) {
  const RopeAngles angles = angles_for(5, 8, false);
  const auto slice = [](const Tensor& x) { return x.narrow(2, 4, 8); };
  const auto columns = [](const Tensor& x) { return x.transpose(1, 2).narrow(2, 0, 3).transpose(1, 2); };
  const Tensor wide = random_tensor({5, 3, 12});
  expect_matches([&](const TensorList& in) { return TensorList{apply_rope(slice(in[0]), angles)}; },
                 [&](const TensorList& in) { return TensorList{rotate_definition(slice(in[0]), angles)}; }, {wide},
                 at::kFloat, 1e-6);
  expect_matches(
      [&](const TensorList& in) {
        return TensorList{apply_rope(columns(in[0]).transpose(1, 2), angles_for(5, 2, true))};
      },
      [&](const TensorList& in) {
        return TensorList{rotate_definition(columns(in[0]).transpose(1, 2), angles_for(5, 2, true))};
      },
      {wide}, at::kFloat, 1e-6);
}

TEST(ApplyRope, NoAnglesNoTokens) {
  const Tensor x = random_tensor({3, 2, 4});
  EXPECT_TRUE(apply_rope(x, {}).is_same(x));
  EXPECT_EQ(apply_rope(at::empty({0, 2, 4}), angles_for(0, 4, false)).sizes(), (std::vector<int64_t>{0, 2, 4}));
}

// ---- Splitting -----------------------------------------------------------------------------------------------------

// Inputs: qkv[, q weight, k weight]
struct SplitCase {
  QkvHeads heads;
  int64_t rotary_dim;  // 0: none
  bool interleaved = false;
  bool norms = false;
  bool zero_centered = false;
  NormKind kind = NormKind::kRms;

  static constexpr int64_t kTokens = 37;
  RopeAngles angles() const { return rotary_dim == 0 ? RopeAngles{} : angles_for(kTokens, rotary_dim, interleaved); }

  TensorList inputs() const {
    const int64_t d = heads.head_dim;
    TensorList in{random_tensor({kTokens, (heads.query + 2 * heads.key_value) * d}) * 2};
    if (norms) in.insert(in.end(), {random_tensor({d}, 2), random_tensor({d}, 3)});
    return in;
  }

  TensorList ours(const TensorList& in) const {
    NormWeights q{kind, norms ? in[1] : Tensor(), {}, 1e-5, zero_centered};
    NormWeights k{kind, norms ? in[2] : Tensor(), {}, 1e-5, zero_centered};
    auto [a, b, c] = split_qkv(in[0], heads, angles(), norms ? &q : nullptr, norms ? &k : nullptr);
    return {a, b, c};
  }

  TensorList definition(const TensorList& in) const {
    const int64_t n = heads.query, g = heads.key_value, d = heads.head_dim;
    const TensorList parts = in[0].split_with_sizes({n * d, g * d, g * d}, 1);
    const auto part = [&](size_t i, int64_t count) {
      Tensor x = parts[i].unflatten(1, {count, d});
      if (i == 2) return x;
      if (norms) {
        if (kind == NormKind::kLayer) x = x - x.mean(-1, true);
        x = x / (x.square().mean(-1, true) + 1e-5).sqrt() * (zero_centered ? in[1 + i] + 1 : in[1 + i]);
      }
      return rotate_definition(x, angles());
    };
    return {part(0, n), part(1, g), part(2, g)};
  }

  void expect_right(at::ScalarType dtype, const std::vector<bool>& used = {}) const {
    expect_matches([&](const TensorList& in) { return ours(in); }, [&](const TensorList& in) { return definition(in); },
                   inputs(), dtype, tolerance_of(dtype), used);
  }
};

TEST(SplitQkv, MatchesItsDefinition) {
  const SplitCase cases[] = {
      {{4, 2, 64}, 64},
      {{3, 1, 10}, 4, true},
      {{4, 4, 5}, 0},
      {{4, 2, 64}, 64, false, true},
      {{2, 2, 9}, 4, true, true, true},
      {{2, 1, 16}, 0, false, true},
      {{2, 1, 16}, 8, false, true, false, NormKind::kLayer},
  };
  int number = 0;
  for (const SplitCase& c : cases) {
    SCOPED_TRACE(number++);
    for (const auto dtype : all_dtypes()) c.expect_right(dtype);
  }
}

TEST(SplitQkv, OutputsWithoutAGradient) {
  for (const bool norms : {false, true}) {
    const SplitCase c{{4, 2, 16}, 8, false, norms};
    // Where a norm's output is not used, its weight gets no gradient in the definition either.
    c.expect_right(at::kFloat, {true, true, false});
    if (!norms) c.expect_right(at::kFloat, {false, false, true});
    if (!norms) c.expect_right(at::kFloat, {false, true, false});
  }
}

TEST(SplitQkv, OutputsAreContiguousAndInputsNeedNotBe) {
  const SplitCase c{{4, 2, 16}, 16};
  const auto views = [](const Tensor& x) { return x.t().contiguous().t(); };
  TensorList in = c.inputs();
  const TensorList out = c.ours({views(in[0])});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(out[i].is_contiguous());
    expect_close(out[i], c.definition(in)[i], 1e-6);
  }
  // Gradients as attention may return them: heads before tokens.
  const auto permuted = [&](const auto& split) {
    return [&](const TensorList& x) {
      TensorList result;
      for (const Tensor& part : split(x)) result.push_back(part.transpose(0, 1).contiguous());
      return result;
    };
  };
  expect_matches(permuted([&](const TensorList& x) { return c.ours(x); }),
                 permuted([&](const TensorList& x) { return c.definition(x); }), c.inputs(), at::kFloat, 1e-5);
}

TEST(SplitQkv, NothingIsRecordedWithoutGradients) {
  const SplitCase c{{4, 2, 16}, 16, false, true};
  TensorList in = c.inputs();
  for (Tensor& t : in) t.requires_grad_();
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(c.ours(in)[0].requires_grad());
}

TEST(SplitQkv, NoTokens) {
  const Tensor qkv = at::empty({0, 32}).requires_grad_();
  auto [q, k, v] = split_qkv(qkv, {4, 2, 4}, angles_for(0, 4, false));
  EXPECT_EQ(q.sizes(), (std::vector<int64_t>{0, 4, 4}));
  (q.sum() + k.sum() + v.sum()).backward();
  EXPECT_EQ(qkv.grad().sizes(), qkv.sizes());
}

TEST(SplitQkv, WeightGradientsDoNotDependOnTiming) {
  const auto run = [](int threads) {
    const ThreadCount count(threads);
    const Tensor qkv = random_tensor({600, 8 * 32}).to(at::kFloat);
    const NormWeights norm{NormKind::kRms, at::ones({32}).requires_grad_()};
    auto [q, k, v] = split_qkv(qkv, {4, 2, 32}, {}, &norm, &norm);
    (q.pow(3).sum() + k.pow(3).sum()).backward();
    return norm.weight.grad();
  };
  const Tensor one = run(1), three = run(3);
  expect_close(three, one, 1e-6);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(3).equal(three));
}

TEST(SplitQkv, BadShapesAreNamed) {
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InternalError& e) {
      return e.what();
    }
    return "no error";
  };
  const Tensor qkv = at::ones({2, 32});
  const NormWeights narrow{NormKind::kRms, at::ones({3})};
  expect_contains(message([&] { split_qkv(qkv, {4, 2, 5}, {}); }), "rows of 40; qkv is [2, 32]");
  expect_contains(message([&] { split_qkv(qkv, {4, 2, 4}, angles_for(3, 4, false)); }), "2 tokens");
  expect_contains(message([&] { split_qkv(qkv, {4, 2, 4}, angles_for(2, 6, false)); }), "6 rotated channels");
  expect_contains(message([&] { split_qkv(qkv, {4, 2, 4}, {}, &narrow); }), "weight of [3]");
  expect_contains(message([&] { apply_rope(qkv, angles_for(2, 4, false)); }), "[t, n, d]");
}

}  // namespace
}  // namespace megalith::ops
