// The gated delta net under tensor and context parallelism against plain ATen on the full weights, token by token.
#include "megalith/nn/attention/gated_delta_net.h"

#include <cmath>
#include <numeric>

#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/nn/recompute.h"
#include "megalith/parallel/parallel_context.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kDeltaNetHidden = 20, kDeltaNetTaps = 3;

struct DeltaNetCase {
  std::string name;
  int64_t key_heads = 4, value_heads = 8, key_dim = 3, value_dim = 5;
  bool residual = false;
  std::vector<int64_t> lengths{8, 8};

  DeltaNetShape shape() const {
    return {.hidden = kDeltaNetHidden,
            .key_heads = key_heads,
            .value_heads = value_heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .conv_kernel = kDeltaNetTaps};
  }
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }

  FullTensors weights() const {
    const double scale = 1.5 / std::sqrt(static_cast<double>(kDeltaNetHidden));
    return {{"in_qkvz.weight", random_tensor({2 * keys() + 2 * values(), kDeltaNetHidden}, 31, scale)},
            {"in_ba.weight", random_tensor({2 * value_heads, kDeltaNetHidden}, 32, scale)},
            {"conv_q.weight", random_tensor({keys(), kDeltaNetTaps}, 33, 0.7)},
            {"conv_k.weight", random_tensor({keys(), kDeltaNetTaps}, 34, 0.7)},
            {"conv_v.weight", random_tensor({values(), kDeltaNetTaps}, 35, 0.7)},
            {"a_log", random_tensor({value_heads}, 36, 0.5)},
            {"dt_bias", random_tensor({value_heads}, 37, 0.5)},
            {"norm.weight", 1 + random_tensor({value_dim}, 38, 0.3)},
            {"out.weight", random_tensor({kDeltaNetHidden, values()}, 39, 0.3)}};
  }
};

// ---- The definition -----------------------------------------------------------------------------------------------

// [s, c] of one sequence, weight [c, taps]
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor y = at::zeros_like(x);
  for (int64_t back = 0; back < std::min(kDeltaNetTaps, x.size(0)); ++back) {
    const at::Tensor moved = at::cat({at::zeros({back, x.size(1)}, x.options()), x.narrow(0, 0, x.size(0) - back)}, 0);
    y = y + moved * weight.select(1, kDeltaNetTaps - 1 - back);
  }
  return y * y.sigmoid();
}

// One value head of one sequence: q, k [s, d], v [s, e], decay and beta [s] -> [s, e]
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay,
                      const at::Tensor& beta) {
  at::Tensor state = at::zeros({q.size(1), v.size(1)}, q.options());
  std::vector<at::Tensor> outs;
  for (int64_t t = 0; t < q.size(0); ++t) {
    state = state * decay[t].exp();
    state = state + at::outer(k[t], (v[t] - k[t].matmul(state)) * beta[t]);
    outs.push_back(q[t].matmul(state));
  }
  return at::stack(outs);
}

at::Tensor unit(const at::Tensor& x) { return x * (x.pow(2).sum(-1, true) + 1e-6).rsqrt(); }

at::Tensor full_layer(const at::Tensor& x, const FullTensors& w, const DeltaNetCase& c) {
  const int64_t share = c.value_heads / c.key_heads, d = c.key_dim, e = c.value_dim;
  std::vector<at::Tensor> sequences;
  int64_t first = 0;
  for (const int64_t s : c.lengths) {
    const at::Tensor own = x.narrow(0, first, s);
    const at::Tensor qkvz = own.mm(w.at("in_qkvz.weight").t()), ba = own.mm(w.at("in_ba.weight").t());
    std::vector<at::Tensor> heads;
    for (int64_t m = 0; m < c.key_heads; ++m) {
      const at::Tensor mine = qkvz.narrow(1, m * (2 * d + 2 * share * e), 2 * d + 2 * share * e);
      const at::Tensor both = ba.narrow(1, m * 2 * share, 2 * share);
      const auto weight = [&](const char* name, int64_t head, int64_t size) {
        return w.at(name).narrow(0, head * size, size);
      };
      const at::Tensor q = unit(convolve(mine.narrow(1, 0, d), weight("conv_q.weight", m, d)));
      const at::Tensor k = unit(convolve(mine.narrow(1, d, d), weight("conv_k.weight", m, d)));
      for (int64_t i = 0; i < share; ++i) {
        const int64_t n = m * share + i;
        const at::Tensor v = convolve(mine.narrow(1, 2 * d + i * e, e), weight("conv_v.weight", n, e));
        const at::Tensor z = mine.narrow(1, 2 * d + (share + i) * e, e);
        const at::Tensor decay = -w.at("a_log")[n].exp() * at::softplus(both.select(1, share + i) + w.at("dt_bias")[n]);
        const at::Tensor out =
            delta_rule(q / std::sqrt(static_cast<double>(d)), k, v, decay, both.select(1, i).sigmoid());
        const at::Tensor normed = out * (out.pow(2).mean(-1, true) + 1e-6).rsqrt() * w.at("norm.weight");
        heads.push_back(normed * z * z.sigmoid());
      }
    }
    sequences.push_back(at::cat(heads, 1));
    first += s;
  }
  return at::cat(sequences, 0).mm(w.at("out.weight").t());
}

// ---- Tests --------------------------------------------------------------------------------------------------------

class GatedDeltaNetTest : public ::testing::TestWithParam<DeltaNetCase> {};

TEST_P(GatedDeltaNetTest, EqualsTheFullLayer) {
  const DeltaNetCase& c = GetParam();
  expect_layer(
      {c.tokens(), kDeltaNetHidden, c.residual, /*main_grads=*/true, c.weights()},
      [&](const at::Tensor& x, const FullTensors& w) { return full_layer(x, w, c); },
      [&](ParameterSet& set, const TensorParallel& tp) -> RankLayer {
        const auto layer = std::make_shared<GatedDeltaNet>(ParameterScope(set), c.shape(), 0, tp);
        return [&c, layer](const at::Tensor& x, const at::Tensor& residual) {
          return layer->forward(x, residual, {.layout = ops::SequenceLayout::packed(c.lengths), .angles = {}});
        };
      });
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDeltaNetTest,
                         ::testing::Values(DeltaNetCase{.name = "SharedKeys"},
                                           DeltaNetCase{.name = "OneKeyEach", .value_heads = 4},
                                           DeltaNetCase{.name = "Packed", .residual = true, .lengths = {5, 1, 7, 3}}),
                         [](const auto& test) { return test.param.name; });

// A rank's sizes for context parallelism, and how it runs the layer.
struct DeltaNetSlices {
  int tp = 1, cp = 2;
  bool sequence_parallel = false, recompute = false;
  std::string name() const {
    return "tp " + std::to_string(tp) + (sequence_parallel ? " sp" : "") + " cp " + std::to_string(cp) +
           (recompute ? " recompute" : "");
  }
};

// Each rank has a slice of the tokens; gradients of parameters are those of all slices together.
void expect_slices(const DeltaNetCase& c, const DeltaNetSlices& how) {
  SCOPED_TRACE(c.name + ", " + how.name());
  const at::Tensor x = random_tensor({c.tokens(), kDeltaNetHidden}, 1), dy = random_tensor(x.sizes(), 2);
  const Expected expected =
      evaluate([&](const at::Tensor& in, const FullTensors& w) { return full_layer(in, w, c); }, x, c.weights(), dy);
  const ops::SequenceLayout whole = ops::SequenceLayout::packed(c.lengths);
  testing::run_ranks(how.tp * how.cp, [&](const testing::Rank& rank) {
    parallel::ParallelContext context(rank.world,
                                      layout::RankGrid({.world_size = how.tp * how.cp, .tp = how.tp, .cp = how.cp}));
    const TensorParallel tp{context.tp(), how.sequence_parallel};
    const comm::Group cp = context.cp();
    ParameterSet set(at::kFloat, at::kCPU);
    const GatedDeltaNet layer(ParameterScope(set), c.shape(), 0, tp, cp);
    load(set, c.weights());
    attach_main_grads(set);
    const auto own = [&](const at::Tensor& of) {
      return between_blocks(slice_tokens(of, whole, cp.rank(), cp.size()), tp);
    };
    const LayerInput input{.layout = slice_layout(whole, cp.rank(), cp.size()), .angles = {}};
    const at::Tensor in = leaf(own(x));
    const at::Tensor y =
        how.recompute
            ? recompute([&](const TensorList& kept) { return layer.forward(kept[0], {}, input); }, {in}, nullptr)
            : layer.forward(in, {}, input);
    expect_close(y, own(expected.y), "output");
    y.backward(own(dy));
    expect_close(in.grad(), own(expected.dx), "gradient of the input", 0,
                 testing::kClose * expected.dx.abs().max().item<double>());
    for (const auto& parameter : set.all()) cp.all_reduce(grad_of(*parameter));
    expect_grads(set, expected.grads, tp);
  });
}

TEST(GatedDeltaNet, SlicesOfSequencesGiveTheWhole) {
  const DeltaNetCase dense{.name = "dense", .lengths = {16, 16}},
      packed{.name = "packed", .value_heads = 4, .lengths = {8, 24, 16}};
  for (const DeltaNetCase& c : {dense, packed}) {
    expect_slices(c, {.cp = 2});
    expect_slices(c, {.cp = 4});
    expect_slices(c, {.tp = 2, .cp = 2});
    expect_slices(c, {.tp = 2, .cp = 2, .sequence_parallel = true});
    expect_slices(c, {.tp = 2, .cp = 2, .sequence_parallel = true, .recompute = true});
  }
}

// One token after the other through a cache gives what all tokens at once give.
TEST(GatedDeltaNet, ThroughACacheEqualsAllAtOnce) {
  for (const int tp_size : {1, 2})
    for (const int64_t prompt : {1, 2, 5})
      run_tp({tp_size, false}, [&](const TensorParallel& tp) {
        const DeltaNetCase c{.lengths = {12}};
        ParameterSet set(at::kFloat, at::kCPU);
        const GatedDeltaNet layer(ParameterScope(set), c.shape(), 1, tp);
        load(set, c.weights());
        const at::NoGradGuard no_grad;
        const at::Tensor x = random_tensor({12, kDeltaNetHidden}, 1);
        const at::Tensor all = layer.forward(x, {}, {.layout = ops::SequenceLayout::dense(1, 12), .angles = {}});
        KvCache cache(2);
        for (int64_t first = 0, count = prompt; first < 12; first += count, count = 1) {
          const at::Tensor y = layer.forward(
              x.narrow(0, first, count), {},
              {.layout = ops::SequenceLayout::dense(1, count), .angles = {}, .cache = &cache, .training = false});
          expect_close(y, all.narrow(0, first, count), "tokens from " + std::to_string(first));
          cache.advance(count);
        }
      });
}

TEST(GatedDeltaNet, FreshWeightsDoNotDependOnTheLayout) {
  const DeltaNetCase c{.lengths = {12}};
  at::Tensor whole;
  run_tp({1, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const GatedDeltaNet layer(ParameterScope(set), c.shape(), 0, tp);
    initialize(set, 5);
    whole = set.find("a_log")->value.detach().clone();
  });
  run_tp({2, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const GatedDeltaNet layer(ParameterScope(set), c.shape(), 0, tp);
    initialize(set, 5);
    expect_identical(set.find("a_log")->value.detach(), whole.narrow(0, tp.rank() * 4, 4), "a_log");
  });
}

TEST(GatedDeltaNet, RefusesHeadsThatCannotBeSplit) {
  run_tp({4, false}, [&](const TensorParallel& tp) {
    const auto refusal = [&](const DeltaNetCase& c) {
      ParameterSet set(at::kFloat, at::kCPU);
      return message_of<ConfigError>([&] { const GatedDeltaNet layer(ParameterScope(set), c.shape(), 0, tp); });
    };
    expect_contains(refusal({.key_heads = 2}),
                    "2 key heads of linear attention cannot be split over"
                    " tensor_model_parallel_size 4");
    expect_contains(refusal({.key_heads = 4, .value_heads = 6}), "6 value heads of linear attention cannot share 4");
  });
  EXPECT_EQ(context_parallel_problem(DeltaNetCase{}.shape(), 2, 2), "");
  EXPECT_EQ(context_parallel_problem(DeltaNetCase{}.shape(), 2, 4),
            "context_parallel_size 4 cannot split the 2 key heads of linear attention that a rank has with"
            " tensor_model_parallel_size 2: linear attention trades tokens for heads; use sizes whose product divides"
            " the 4 key heads");
}

}  // namespace
}  // namespace megalith::nn
