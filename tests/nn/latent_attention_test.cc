// Multi-head latent attention under tensor parallelism against plain ATen on the full weights.
#include "megalith/nn/attention/latent_attention.h"

#include <cmath>
#include <numeric>

#include "megalith/nn/attention/kv_cache.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kLatentHidden = 20;
constexpr double kLatentTheta = 100;  // small: positions matter within a few tokens

struct LatentCase {
  std::string name;
  int64_t heads = 4, q_rank = 12, kv_rank = 8, nope = 6, rotary = 4, value = 5;
  bool bias = false, residual = false;
  double scale = 0;
  std::vector<int64_t> lengths{8, 8};  // 16 tokens
  LatentRecompute recompute;

  LatentAttentionShape shape() const {
    return {.hidden = kLatentHidden,
            .heads = heads,
            .q_rank = q_rank,
            .kv_rank = kv_rank,
            .nope_dim = nope,
            .rotary_dim = rotary,
            .value_dim = value,
            .bias = bias,
            .scale = scale};
  }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

  FullTensors weights() const {
    FullTensors w;
    uint64_t seed = 30;
    const auto add = [&](const std::string& part, int64_t rows, int64_t in, bool with_bias) {
      w[part + ".weight"] = random_tensor({rows, in}, ++seed, 1.5 / std::sqrt(static_cast<double>(in)));
      if (with_bias) w[part + ".bias"] = random_tensor({rows}, ++seed, 0.5);
    };
    if (q_rank > 0) {
      add("q_down", q_rank, kLatentHidden, bias);
      add("q_up", heads * (nope + rotary), q_rank, false);
      w["q_latent_norm.weight"] = 1 + random_tensor({q_rank}, ++seed, 0.3);
    } else {
      add("q", heads * (nope + rotary), kLatentHidden, false);
    }
    add("kv_down", kv_rank + rotary, kLatentHidden, bias);
    w["kv_latent_norm.weight"] = 1 + random_tensor({kv_rank}, ++seed, 0.3);
    add("kv_up", heads * (nope + value), kv_rank, false);
    add("o", kLatentHidden, heads * value, bias);
    return w;
  }
};

LayerInput layer_input(const LatentCase& c) {
  LayerInput input{.layout = ops::SequenceLayout::packed(c.lengths), .angles = {}};
  input.angles =
      ops::rope_angles({.rotary_dim = c.rotary, .theta = kLatentTheta, .interleaved = true}, input.layout, at::kCPU);
  return input;
}

// ---- The definition -----------------------------------------------------------------------------------------------

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean(-1, true) + 1e-6).rsqrt() * weight;
}

// x [s, n, r] of one sequence, pairs side by side.
at::Tensor rotate_latent(const at::Tensor& x) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor frequency = at::pow(kLatentTheta, at::arange(half, at::kDouble) / -static_cast<double>(half));
  const at::Tensor angle = (at::arange(x.size(0), at::kDouble).unsqueeze(1) * frequency).unsqueeze(1);
  const at::Tensor pairs = x.unflatten(2, {half, 2}), a = pairs.select(3, 0), b = pairs.select(3, 1);
  return at::stack({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3).flatten(2);
}

at::Tensor full_attention(const at::Tensor& x, const FullTensors& w, const LatentCase& c) {
  const auto linear = [&](const at::Tensor& in, const std::string& part) {
    const at::Tensor y = in.mm(w.at(part + ".weight").t());
    return w.contains(part + ".bias") ? y + w.at(part + ".bias") : y;
  };
  const at::Tensor q_flat =
      c.q_rank > 0 ? linear(norm(linear(x, "q_down"), w.at("q_latent_norm.weight")), "q_up") : linear(x, "q");
  const at::Tensor q = q_flat.unflatten(1, {c.heads, c.nope + c.rotary}), down = linear(x, "kv_down");
  const at::Tensor kv = linear(norm(down.narrow(1, 0, c.kv_rank), w.at("kv_latent_norm.weight")), "kv_up")
                            .unflatten(1, {c.heads, c.nope + c.value});
  const at::Tensor key = down.narrow(1, c.kv_rank, c.rotary).unsqueeze(1);
  const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.nope + c.rotary));
  std::vector<at::Tensor> sequences;
  int64_t first = 0;
  for (const int64_t s : c.lengths) {
    const auto own = [&](const at::Tensor& all) { return all.narrow(0, first, s); };
    const at::Tensor turned = rotate_latent(own(q).narrow(2, c.nope, c.rotary)),
                     shared = rotate_latent(own(key)).select(1, 0);
    std::vector<at::Tensor> heads;
    for (int64_t n = 0; n < c.heads; ++n) {
      const at::Tensor mine = own(kv).select(1, n);
      const at::Tensor scores = own(q).select(1, n).narrow(1, 0, c.nope).mm(mine.narrow(1, 0, c.nope).t()) +
                                turned.select(1, n).mm(shared.t());
      const at::Tensor later = at::ones({s, s}, at::kBool).triu(1);
      const at::Tensor p =
          at::softmax((scores * scale).masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
      heads.push_back(p.mm(mine.narrow(1, c.nope, c.value)));
    }
    sequences.push_back(at::cat(heads, 1));
    first += s;
  }
  return linear(at::cat(sequences, 0), "o");
}

// ---- Tests --------------------------------------------------------------------------------------------------------

class LatentAttentionTest : public ::testing::TestWithParam<LatentCase> {
 protected:
  static void run(bool main_grads) {
    const LatentCase& c = GetParam();
    expect_layer(
        {c.tokens(), kLatentHidden, c.residual, main_grads, c.weights()},
        [&](const at::Tensor& x, const FullTensors& w) { return full_attention(x, w, c); },
        [&](ParameterSet& set, const TensorParallel& tp) -> RankLayer {
          const auto rng = std::make_shared<parallel::RngTracker>();
          const auto layer =
              std::make_shared<LatentAttention>(ParameterScope(set), c.shape(), 0, tp, *rng, c.recompute);
          return [&c, rng, layer](const at::Tensor& x, const at::Tensor& residual) {
            return layer->forward(x, residual, layer_input(c));
          };
        });
  }
};

TEST_P(LatentAttentionTest, EqualsTheFullLayer) { run(/*main_grads=*/false); }
TEST_P(LatentAttentionTest, WritesIntoMainGrad) { run(/*main_grads=*/true); }

const std::vector<LatentCase>& latent_cases() {
  static const std::vector<LatentCase> list{
      {.name = "Compressed"},
      {.name = "WithoutQueryCompression", .q_rank = 0},
      {.name = "PackedAndScaled", .scale = 0.7, .lengths = {5, 1, 7, 3}},
      {.name = "BiasesAndResidual", .bias = true, .residual = true},
      {.name = "ValuesLargerThanKeys", .nope = 2, .rotary = 2, .value = 7, .residual = true},
      {.name = "CoreAgain", .lengths = {5, 11}, .recompute = {.core = true}},
      {.name = "UpProjectionAgain", .residual = true, .lengths = {5, 11}, .recompute = {.up_proj = true}},
      {.name = "UpProjectionOfPlainQueriesAgain", .q_rank = 0, .recompute = {.up_proj = true}},
      {.name = "BothAgain", .lengths = {5, 11}, .recompute = {.core = true, .up_proj = true}},
  };
  return list;
}

INSTANTIATE_TEST_SUITE_P(Shapes, LatentAttentionTest, ::testing::ValuesIn(latent_cases()),
                         [](const auto& test) { return test.param.name; });

// One token after the other through a cache gives what all tokens at once give.
TEST(LatentAttention, ThroughACacheEqualsAllAtOnce) {
  for (const int64_t q_rank : {12, 0})
    for (const int tp_size : {1, 2, 4})
      run_tp({tp_size, false}, [&](const TensorParallel& tp) {
        const LatentCase c{.q_rank = q_rank, .lengths = {12}};
        ParameterSet set(at::kFloat, at::kCPU);
        parallel::RngTracker rng;
        const LatentAttention attention(ParameterScope(set), c.shape(), 1, tp, rng, {});
        load(set, c.weights());
        const at::NoGradGuard no_grad;
        const at::Tensor x = random_tensor({12, kLatentHidden}, 1);
        const at::Tensor all = attention.forward(x, {}, layer_input(c));
        KvCache cache(2);
        for (int64_t first = 0, count = 5; first < 12; first += count, count = 1) {
          const at::Tensor positions = at::arange(first, first + count, at::kLong);
          LayerInput input{.layout = ops::SequenceLayout::dense(1, count).with_positions(positions),
                           .angles = {},
                           .cache = &cache,
                           .training = false};
          input.angles = ops::rope_angles({.rotary_dim = c.rotary, .theta = kLatentTheta, .interleaved = true},
                                          input.layout, at::kCPU);
          const at::Tensor y = attention.forward(x.narrow(0, first, count), {}, input);
          expect_close(y, all.narrow(0, first, count), "tokens from " + std::to_string(first));
          cache.advance(count);
        }
      });
}

TEST(LatentAttention, RefusesHeadsThatCannotBeSplit) {
  run_tp({4, false}, [&](const TensorParallel& tp) {
    const LatentCase c{.heads = 6};
    ParameterSet set(at::kFloat, at::kCPU);
    parallel::RngTracker rng;
    const std::string message = message_of<ConfigError>(
        [&] { const LatentAttention attention(ParameterScope(set), c.shape(), 0, tp, rng, {}); });
    expect_contains(message, "6 attention heads cannot be split over tensor_model_parallel_size 4");
  });
}

}  // namespace
}  // namespace megalith::nn
