// Weight-decomposed updates of column- and row-parallel layers against their definition on the full weights, in every
// layout: y = (x - x') Wᵀ + m / ‖W + s B A‖ ∘ (x' Wᵀ + s (x' Aᵀ) Bᵀ) + b, where x' is x after dropout.
#include "megalith/nn/parameter/dora.h"

#include <algorithm>
#include <cmath>

#include "megalith/nn/tensor_parallel/linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kDoraTokens = 8, kDoraIn = 12, kDoraRank = 2, kDoraSeed = 5;
constexpr double kDoraDropout = 0.25;

struct DoraCase {
  bool main_grads = false;
  double dropout = 0;
};

// An update of one tensor, in full: factors "name.a", "name.b" and magnitudes "name.m".
void add_dora_update(FullTensors& to, const std::string& name, int64_t out, int64_t in, uint64_t seed) {
  to[name + ".a"] = random_tensor({kDoraRank, in}, seed, 0.5);
  to[name + ".b"] = random_tensor({out, kDoraRank}, seed + 1, 0.5);
  to[name + ".m"] = random_tensor({out}, seed + 2).abs() + 0.5;
}

// The definition. The norm is a constant: no gradient passes through it.
at::Tensor full_dora(const at::Tensor& x, const at::Tensor& mask, const FullTensors& w, const std::string& name,
                     double scale) {
  const at::Tensor &weight = w.at(name + ".weight"), &a = w.at(name + ".a"), &b = w.at(name + ".b");
  const at::Tensor in = mask.defined() ? x * mask : x;
  const at::Tensor norm = (weight + scale * b.mm(a)).detach().square().sum(1).sqrt();
  const at::Tensor u = in.mm(weight.t()) + scale * in.mm(a.t()).mm(b.t());
  return (x - in).mm(weight.t()) + w.at(name + ".m") / norm * u;
}

// The mask that a rank draws for an input of so many columns. `split`: from the stream of this rank alone.
at::Tensor dora_mask(int rank, int64_t columns, bool split) {
  parallel::RngTracker rng;
  rng.seed(layout::seeds_for_base(kDoraSeed, rank, 0, rank));
  const auto fork = rng.fork_if(split);
  return at::empty({kDoraTokens, columns}, at::kFloat)
      .bernoulli_(1 - kDoraDropout, rng.generator())
      .mul_(1 / (1 - kDoraDropout));
}

FullTensors with_update(FullTensors base, const FullTensors& more) {
  base.insert(more.begin(), more.end());
  return base;
}

// Runs the layer as often as gradients are to be added, and compares.
void expect_dora(const DoraCase& how, const ParameterSet& updates, const TensorParallel& tp, const Expected& expected,
                 const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& forward,
                 const at::Tensor& expected_y, const at::Tensor& dy) {
  const double passes = how.main_grads ? 2 : 1;
  if (how.main_grads) attach_main_grads(updates);
  const at::Tensor in = leaf(between_blocks(x, tp));
  for (int pass = 0; pass < static_cast<int>(passes); ++pass) {
    const at::Tensor y = forward(in);
    expect_close(y, expected_y, "output");
    y.backward(dy);
  }
  expect_close(in.grad(), between_blocks(expected.dx, tp) * passes, "gradient of the input", 0,
               2 * testing::kClose * expected.dx.abs().max().item<double>());
  FullTensors grads;
  for (const auto& [name, grad] : expected.grads) grads[name] = grad * passes;
  expect_grads(updates, grads, tp, 2 * testing::kClose);
}

// ---- Column: three fused tensors, of which the first and the last have updates; the last is padded at tp 4 ----

const std::vector<OutputPart> kDoraParts{{"q", 8}, {"k", 4}, {"v", 7, 8}};
constexpr double kDoraScaleQ = 0.5, kDoraScaleV = 2;

FullTensors dora_weights() {
  FullTensors w;
  uint64_t seed = 10;
  for (const OutputPart& part : kDoraParts) {
    w[part.name + ".weight"] = random_tensor({part.rows, kDoraIn}, ++seed, 0.3);
    w[part.name + ".bias"] = random_tensor({part.rows}, ++seed);
  }
  return w;
}

FullTensors dora_updates() {
  FullTensors w;
  add_dora_update(w, "q", 8, kDoraIn, 30);
  add_dora_update(w, "v", 7, kDoraIn, 40);
  return w;
}

at::Tensor full_dora_column(const at::Tensor& x, const at::Tensor& mask, const FullTensors& w) {
  return at::cat({full_dora(x, mask, w, "q", kDoraScaleQ), x.mm(w.at("k.weight").t()),
                  full_dora(x, mask, w, "v", kDoraScaleV)},
                 1) +
         at::cat({w.at("q.bias"), w.at("k.bias"), w.at("v.bias")});
}

// This rank's columns of the three outputs, padded.
at::Tensor dora_columns(const at::Tensor& full, const TensorParallel& tp) {
  return at::cat({own_columns(full.narrow(1, 0, 8), tp), own_columns(full.narrow(1, 8, 4), tp),
                  own_columns(at::constant_pad_nd(full.narrow(1, 12, 7), {0, 1}), tp)},
                 1);
}

// The rows of a tensor with `rows` (padded to 8) that a rank has, as a part at `row` of its parameter.
ParameterPart own_rows_of(const std::string& name, int64_t rows, std::vector<int64_t> rest, int64_t row,
                          const TensorParallel& tp) {
  const auto [first, count] = tp.share(8);
  ParameterPart part{name, {rows}, {std::min(first, rows)}, {std::clamp<int64_t>(rows - first, 0, count)}, row};
  for (const int64_t size : rest) {
    part.global_shape.push_back(size);
    part.offset.push_back(0);
    part.extent.push_back(size);
  }
  return part;
}

void test_column_dora(const DoraCase& how) {
  const at::Tensor x = random_tensor({kDoraTokens, kDoraIn}, 1), dy = random_tensor({kDoraTokens, 19}, 2);
  const at::Tensor mask = how.dropout > 0 ? dora_mask(0, kDoraIn, /*split=*/false) : at::Tensor();
  const FullTensors base = dora_weights(), updated = dora_updates();
  const Expected expected =
      evaluate([&](const at::Tensor& in, const FullTensors& w) { return full_dora_column(in, mask, w); }, x,
               with_update(base, updated), dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU), updates(at::kFloat, at::kCPU);
    const ColumnParallelLinear layer(ParameterScope(set), "qkv", kDoraIn, kDoraParts, true, Init::zeros(), tp);
    load(set, base);
    for (const auto& parameter : set.all()) parameter->value.requires_grad_(false);
    parallel::RngTracker rng;
    seed_streams(rng, kDoraSeed, tp);
    const LowRankState state{.active = true, .training = true};
    const int64_t own = 8 / tp.size();
    LowRank update{.rank = kDoraRank, .dropout = how.dropout, .rng = &rng, .state = &state};
    update.parts = {{.out = 0, .rows = own, .a = 0, .b = 0, .scale = kDoraScaleQ},
                    {.out = own + 4 / tp.size(), .rows = own, .a = kDoraRank, .b = own, .scale = kDoraScaleV}};
    const ParameterScope scope(updates);
    ParameterSpec a{.name = "a", .partial_grad_over_tp = tp.size() > 1};
    a.parts = {{"q.a", {kDoraRank, kDoraIn}, {0, 0}, {kDoraRank, kDoraIn}, 0},
               {"v.a", {kDoraRank, kDoraIn}, {0, 0}, {kDoraRank, kDoraIn}, kDoraRank}};
    update.a = &scope.add(std::move(a), {2 * kDoraRank, kDoraIn});
    ParameterSpec b{.name = "b"}, m{.name = "m"};
    b.parts = {own_rows_of("q.b", 8, {kDoraRank}, 0, tp), own_rows_of("v.b", 7, {kDoraRank}, own, tp)};
    m.parts = {own_rows_of("q.m", 8, {}, 0, tp), own_rows_of("v.m", 7, {}, own, tp)};
    update.b = &scope.add(std::move(b), {2 * own, kDoraRank});
    update.magnitude = &scope.add(std::move(m), {2 * own});
    load(updates, updated);
    set.find("qkv.weight")->attached.update = &update;
    expect_dora(
        how, updates, tp, expected, x,
        [&](const at::Tensor& in) {
          seed_streams(rng, kDoraSeed, tp);  // the same mask in every pass
          return layer.forward(in);
        },
        dora_columns(expected.y, tp), dora_columns(dy, tp));
  });
}

TEST(DoraColumn, EqualsTheDefinition) { test_column_dora({}); }
TEST(DoraColumn, AddsIntoMainGrad) { test_column_dora({.main_grads = true}); }
TEST(DoraColumn, DropsOutAsPeftDoes) { test_column_dora({.dropout = kDoraDropout}); }

// ---- Row: norms are sums over the ranks ----

constexpr int64_t kDoraRowOut = 6;

FullTensors dora_row_updates() {
  FullTensors w;
  add_dora_update(w, "down", kDoraRowOut, kDoraIn, 50);
  return w;
}

void test_row_dora(const DoraCase& how) {
  const at::Tensor x = random_tensor({kDoraTokens, kDoraIn}, 1), dy = random_tensor({kDoraTokens, kDoraRowOut}, 2);
  const at::Tensor residual = random_tensor({kDoraTokens, kDoraRowOut}, 3);
  const FullTensors base{{"down.weight", random_tensor({kDoraRowOut, kDoraIn}, 4, 0.3)},
                         {"down.bias", random_tensor({kDoraRowOut}, 5)}};
  const FullTensors updated = dora_row_updates();
  run_all_layouts([&](const TensorParallel& tp) {
    std::vector<at::Tensor> masks;
    for (int rank = 0; rank < tp.size(); ++rank) masks.push_back(dora_mask(rank, kDoraIn / tp.size(), /*split=*/true));
    const at::Tensor mask = how.dropout > 0 ? at::cat(masks, 1) : at::Tensor();
    const Expected expected = evaluate(
        [&](const at::Tensor& in, const FullTensors& w) {
          return full_dora(in, mask, w, "down", 0.5) + w.at("down.bias") + residual;
        },
        x, with_update(base, updated), dy);
    ParameterSet set(at::kFloat, at::kCPU), updates(at::kFloat, at::kCPU);
    const RowParallelLinear layer(ParameterScope(set), "down", kDoraIn, kDoraRowOut, true, Init::zeros(), tp);
    load(set, base);
    for (const auto& parameter : set.all()) parameter->value.requires_grad_(false);
    parallel::RngTracker rng;
    const LowRankState state{.active = true, .training = true};
    LowRank update{.rank = kDoraRank, .dropout = how.dropout, .rng = &rng, .state = &state};
    update.parts = {{.out = 0, .rows = kDoraRowOut, .a = 0, .b = 0, .scale = 0.5}};
    const ParameterScope scope(updates);
    const auto [first, count] = tp.share(kDoraIn);
    ParameterSpec a{.name = "a"};
    a.parts = {{"down.a", {kDoraRank, kDoraIn}, {0, first}, {kDoraRank, count}, 0}};
    update.a = &scope.add(std::move(a), {kDoraRank, count});
    ParameterSpec b{.name = "b", .partial_grad_over_tp = tp.size() > 1};
    ParameterSpec m{.name = "m", .partial_grad_over_tp = tp.size() > 1};
    b.parts = {{"down.b", {kDoraRowOut, kDoraRank}, {0, 0}, {kDoraRowOut, kDoraRank}, 0}};
    m.parts = {{"down.m", {kDoraRowOut}, {0}, {kDoraRowOut}, 0}};
    update.b = &scope.add(std::move(b), {kDoraRowOut, kDoraRank});
    update.magnitude = &scope.add(std::move(m), {kDoraRowOut});
    if (tp.size() > 1) update.inputs_over = tp.group;
    load(updates, updated);
    set.find("down.weight")->attached.update = &update;
    // The input of a row layer has all tokens and a part of the columns.
    const double passes = how.main_grads ? 2 : 1;
    if (how.main_grads) attach_main_grads(updates);
    const at::Tensor in = leaf(own_columns(x, tp));
    for (int pass = 0; pass < static_cast<int>(passes); ++pass) {
      seed_streams(rng, kDoraSeed, tp);
      const at::Tensor y = layer.forward(in, between_blocks(residual, tp));
      expect_close(y, between_blocks(expected.y, tp), "output");
      y.backward(between_blocks(dy, tp));
    }
    expect_close(in.grad(), own_columns(expected.dx, tp) * passes, "gradient of the input", 0,
                 2 * testing::kClose * expected.dx.abs().max().item<double>());
    FullTensors grads;
    for (const auto& [name, grad] : expected.grads) grads[name] = grad * passes;
    expect_grads(updates, grads, tp, 2 * testing::kClose);
  });
}

TEST(DoraRow, EqualsTheDefinition) { test_row_dora({}); }
TEST(DoraRow, AddsIntoMainGrad) { test_row_dora({.main_grads = true}); }
TEST(DoraRow, DropsOutAsPeftDoes) { test_row_dora({.dropout = kDoraDropout}); }

// ---- Norms ----

// More rows than are computed at once, and a weight in bf16 whose update is smaller than the steps of bf16.
TEST(DoraNorms, AreThoseOfTheSumInFp32) {
  const int64_t in = int64_t{1} << 22, rows = norm_rows_at_once(in) + 1;
  ParameterSet set(at::kFloat, at::kCPU);
  const ParameterScope scope(set);
  Parameter& weight = scope.add({.name = "w", .use = WeightUse::kRow, .dtype = at::kBFloat16}, {rows, in});
  LowRank update{.a = &scope.add({.name = "a"}, {1, in}),
                 .b = &scope.add({.name = "b"}, {rows, 1}),
                 .rank = 1,
                 .parts = {{.rows = rows, .scale = 0.5}}};
  const at::NoGradGuard no_grad;
  weight.value.fill_(1);
  update.a->value.fill_(1);
  update.b->value.copy_(at::arange(rows, at::kFloat).unsqueeze(1).mul_(1e-3));
  const at::Tensor expected = (at::arange(rows, at::kDouble) * 0.5e-3 + 1) * std::sqrt(static_cast<double>(in));
  expect_close(updated_norms(weight, update), expected, "norms", 1e-5);
}

}  // namespace
}  // namespace megalith::nn
