// Self-attention under tensor parallelism against plain ATen on the full weights.
#include "megalith/nn/attention/self_attention.h"

#include <cmath>
#include <numeric>

#include "megalith/nn/attention/kv_cache.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kAttentionHidden = 20;
constexpr double kAttentionTheta = 100;  // small: positions matter within a few tokens

struct AttentionCase {
  std::string name;
  int64_t heads = 4, kv_heads = 4, head_dim = 8;
  bool qkv_bias = false, out_bias = false, qk_norm = false, rope = true, residual = false, gate = false;
  int64_t window = 0;
  double scale = 0;
  std::vector<int64_t> lengths{8, 8};  // 16 tokens

  AttentionShape shape() const {
    AttentionShape s{.hidden = kAttentionHidden, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
    s.qkv_bias = qkv_bias;
    s.out_bias = out_bias;
    s.output_gate = gate;
    if (qk_norm) s.qk_norm = NormShape{.size = head_dim, .epsilon = 1e-6};
    s.window = window;
    s.scale = scale;
    return s;
  }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

  FullTensors weights() const {
    FullTensors w;
    uint64_t seed = 30;
    const auto add = [&](const std::string& part, int64_t rows, int64_t in, bool bias) {
      w[part + ".weight"] = random_tensor({rows, in}, ++seed, 1.5 / std::sqrt(static_cast<double>(in)));
      if (bias) w[part + ".bias"] = random_tensor({rows}, ++seed, 0.5);
    };
    add("q", (gate ? 2 : 1) * heads * head_dim, kAttentionHidden, qkv_bias);
    add("k", kv_heads * head_dim, kAttentionHidden, qkv_bias);
    add("v", kv_heads * head_dim, kAttentionHidden, qkv_bias);
    add("o", kAttentionHidden, heads * head_dim, out_bias);
    if (qk_norm)
      for (const char* norm : {"q_norm", "k_norm"})
        w[std::string(norm) + ".weight"] = 1 + random_tensor({head_dim}, ++seed, 0.3);
    return w;
  }
};

LayerInput layer_input(const AttentionCase& c) {
  LayerInput input{.layout = ops::SequenceLayout::packed(c.lengths), .angles = {}};
  const ops::RopeSettings settings{.rotary_dim = c.head_dim, .theta = kAttentionTheta};
  if (c.rope) input.angles = ops::rope_angles(settings, input.layout, at::kCPU);
  return input;
}

// ---- The definition -----------------------------------------------------------------------------------------------

at::Tensor head_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean(-1, true) + 1e-6).rsqrt() * weight;
}

// x [s, n, d] of one sequence.
at::Tensor rotate(const at::Tensor& x) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor frequency = at::pow(kAttentionTheta, at::arange(half, at::kDouble) / -static_cast<double>(half));
  const at::Tensor angle = (at::arange(x.size(0), at::kDouble).unsqueeze(1) * frequency).unsqueeze(1);  // [s, 1, d/2]
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 2);
}

// One sequence: q [s, n, d], k, v [s, g, d] -> [s, n d]
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionCase& c) {
  const int64_t s = q.size(0);
  std::vector<at::Tensor> heads;
  for (int64_t n = 0; n < c.heads; ++n) {
    const int64_t g = n / (c.heads / c.kv_heads);
    const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
    const at::Tensor scores = q.select(1, n).mm(k.select(1, g).t()) * scale;
    const at::Tensor distance = at::arange(s).unsqueeze(1) - at::arange(s).unsqueeze(0);
    at::Tensor hidden = distance.lt(0);
    if (c.window > 0) hidden = hidden.logical_or(distance.ge(c.window));
    const at::Tensor p = at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
    heads.push_back(p.mm(v.select(1, g)));
  }
  return at::cat(heads, 1);
}

at::Tensor full_attention(const at::Tensor& x, const FullTensors& w, const AttentionCase& c) {
  const auto project = [&](const char* part, int64_t heads) {
    at::Tensor y = x.mm(w.at(std::string(part) + ".weight").t());
    if (c.qkv_bias) y = y + w.at(std::string(part) + ".bias");
    return y.view({x.size(0), heads, c.head_dim});
  };
  at::Tensor q = project("q", c.gate ? 2 * c.heads : c.heads), k = project("k", c.kv_heads), gate;
  if (c.gate) {  // head by head: query, gate
    gate = q.unflatten(1, {c.heads, 2}).select(2, 1).flatten(1);
    q = q.unflatten(1, {c.heads, 2}).select(2, 0);
  }
  const at::Tensor v = project("v", c.kv_heads);
  if (c.qk_norm) {
    q = head_norm(q, w.at("q_norm.weight"));
    k = head_norm(k, w.at("k_norm.weight"));
  }
  std::vector<at::Tensor> sequences;
  int64_t first = 0;
  for (const int64_t length : c.lengths) {
    const auto own = [&](const at::Tensor& all) { return all.narrow(0, first, length); };
    const at::Tensor qs = c.rope ? rotate(own(q)) : own(q), ks = c.rope ? rotate(own(k)) : own(k);
    sequences.push_back(attend(qs, ks, own(v), c));
    first += length;
  }
  at::Tensor mixed = at::cat(sequences, 0);
  if (c.gate) mixed = mixed * gate.sigmoid();
  const at::Tensor y = mixed.mm(w.at("o.weight").t());
  return c.out_bias ? y + w.at("o.bias") : y;
}

// ---- Tests --------------------------------------------------------------------------------------------------------

class SelfAttentionTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  static void run(bool main_grads) {
    const AttentionCase& c = GetParam();
    expect_layer(
        {c.tokens(), kAttentionHidden, c.residual, main_grads, c.weights()},
        [&](const at::Tensor& x, const FullTensors& w) { return full_attention(x, w, c); },
        [&](ParameterSet& set, const TensorParallel& tp) -> RankLayer {
          const auto rng = std::make_shared<parallel::RngTracker>();
          const auto layer =
              std::make_shared<SelfAttention>(ParameterScope(set), c.shape(), 0, tp, *rng, /*recompute_core=*/false);
          return [&c, rng, layer](const at::Tensor& x, const at::Tensor& residual) {
            return layer->forward(x, residual, layer_input(c));
          };
        });
  }
};

TEST_P(SelfAttentionTest, EqualsTheFullLayer) { run(/*main_grads=*/false); }
TEST_P(SelfAttentionTest, WritesIntoMainGrad) { run(/*main_grads=*/true); }

const std::vector<AttentionCase>& attention_cases() {
  static const std::vector<AttentionCase> list{
      {.name = "MultiHead"},
      {.name = "WithoutRope", .rope = false},
      {.name = "GroupedQuery", .heads = 8, .kv_heads = 4},
      {.name = "EightHeadsShareTwo", .heads = 8, .kv_heads = 2, .head_dim = 6},
      {.name = "FourHeadsShareOne", .heads = 4, .kv_heads = 1},
      {.name = "Biases", .kv_heads = 2, .qkv_bias = true, .out_bias = true, .residual = true},
      {.name = "BiasesSharedByFour", .kv_heads = 1, .qkv_bias = true, .out_bias = true},
      {.name = "QkNorm", .kv_heads = 2, .qk_norm = true},
      {.name = "QkNormSharedByFour", .kv_heads = 1, .qk_norm = true, .residual = true},
      {.name = "Window", .kv_heads = 2, .window = 3},
      {.name = "Packed", .kv_heads = 2, .lengths = {5, 1, 7, 3}},
      {.name = "PackedWindowAndScale", .heads = 8, .kv_heads = 2, .window = 2, .scale = 0.7, .lengths = {1, 11, 4}},
      {.name = "OutputGate", .heads = 8, .kv_heads = 2, .qk_norm = true, .gate = true},
      {.name = "Everything",
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 10,
       .qkv_bias = true,
       .out_bias = true,
       .qk_norm = true,
       .residual = true,
       .window = 4,
       .lengths = {9, 7}},
  };
  return list;
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelfAttentionTest, ::testing::ValuesIn(attention_cases()),
                         [](const auto& test) { return test.param.name; });

// One token after the other through a cache gives what all tokens at once give.
TEST(SelfAttention, ThroughACacheEqualsAllAtOnce) {
  for (const int64_t kv_heads : {4, 1})
    for (const int64_t window : {0, 3})
      for (const int tp_size : {1, 2, 4})
        run_tp({tp_size, false}, [&](const TensorParallel& tp) {
          const AttentionCase c{
              .kv_heads = kv_heads, .qkv_bias = true, .qk_norm = true, .window = window, .lengths = {12}};
          ParameterSet set(at::kFloat, at::kCPU);
          parallel::RngTracker rng;
          const SelfAttention attention(ParameterScope(set), c.shape(), 1, tp, rng, false);
          load(set, c.weights());
          const at::NoGradGuard no_grad;
          const at::Tensor x = random_tensor({12, kAttentionHidden}, 1);
          const at::Tensor all = attention.forward(x, {}, layer_input(c));
          KvCache cache(2);
          for (int64_t first = 0, count = 5; first < 12; first += count, count = 1) {
            EXPECT_EQ(cache.tokens(), first);
            const at::Tensor positions = at::arange(first, first + count, at::kLong);
            LayerInput input{.layout = ops::SequenceLayout::dense(1, count).with_positions(positions),
                             .angles = {},
                             .cache = &cache,
                             .training = false};
            input.angles =
                ops::rope_angles({.rotary_dim = c.head_dim, .theta = kAttentionTheta}, input.layout, at::kCPU);
            const at::Tensor y = attention.forward(x.narrow(0, first, count), {}, input);
            expect_close(y, all.narrow(0, first, count), "tokens from " + std::to_string(first));
            cache.advance(count);
          }
        });
}

std::string refusal(const AttentionCase& c, int tp_size) {
  std::string message;
  run_tp({tp_size, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    parallel::RngTracker rng;
    const std::string text = message_of<ConfigError>(
        [&] { const SelfAttention attention(ParameterScope(set), c.shape(), 0, tp, rng, false); });
    if (tp.rank() == 0) message = text;
  });
  return message;
}

TEST(SelfAttention, RefusesHeadsThatCannotBeSplit) {
  expect_contains(refusal({.heads = 6, .kv_heads = 6}, 4),
                  "6 attention heads cannot be split over tensor_model_parallel_size 4");
  expect_contains(refusal({.heads = 6, .kv_heads = 3}, 2),
                  "3 key/value heads cannot be split over tensor_model_parallel_size 2");
  expect_contains(refusal({.heads = 7, .kv_heads = 2}, 1), "7 attention heads cannot share 2 key/value heads");
  expect_contains(refusal({.heads = 4, .kv_heads = 0}, 1), "4 attention heads cannot share 0 key/value heads");
  // Four ranks cannot deal the rows of one head of size 6.
  const std::string message = refusal({.heads = 4, .kv_heads = 1, .head_dim = 6}, 4);
  expect_contains(message, "1 key/value heads of 6 channels");
  expect_contains(message, "tensor_model_parallel_size 4");
}

}  // namespace
}  // namespace megalith::nn
