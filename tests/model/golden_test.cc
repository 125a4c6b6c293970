// The golden models of Hugging Face's library, in every layout of tensor, sequence and context parallelism.
//
// Tolerance: 1e-5 of a tensor's largest value, or the golden file's own noise where that is larger. That noise is of
// attention kernels; a recurrence over the tokens rounds in other places, and sums over the ranks move the gradients of
// two norms of qwen3_next by 1.5e-5: 2e-5 for models with linear attention.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "megalith/model/families/family.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/golden_model.h"

namespace megalith::testing {
namespace {

class GoldenHf : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string type = golden_model_type(GetParam());
    if (!model_type_supported(type)) GTEST_SKIP() << GetParam() << ": model type " << type << " is not supported";
    golden_ = read_golden_model(GetParam());
    if (model::read_model_config(golden_.folder).delta_net) tolerance_ = 2 * kClose;
  }

  TokenBatch padded() const {
    const int64_t b = golden_.input_ids.size(0), s = golden_.input_ids.size(1);
    return {golden_.input_ids.view({-1}), golden_.labels.view({-1}), ops::SequenceLayout::dense(b, s),
            1.0 / static_cast<double>(golden_.num_label_tokens)};
  }
  TokenBatch packed() const {
    const GoldenModel::Packed& row = golden_.packed_row();
    return {row.input_ids.view({-1}), row.labels.view({-1}), ops::SequenceLayout::from_cumulative(row.cu_seqlens),
            1.0 / static_cast<double>(row.num_label_tokens)};
  }
  // The same batch without its padding: sequences of unequal length.
  TokenBatch unpadded() const {
    const at::Tensor real = golden_.attention_mask.view({-1}).nonzero().view({-1});
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < golden_.attention_mask.size(0); ++row)
      lengths.push_back(golden_.attention_mask[row].sum().item<int64_t>());
    return {golden_.input_ids.view({-1}).index_select(0, real), golden_.labels.view({-1}).index_select(0, real),
            ops::SequenceLayout::packed(lengths), 1.0 / static_cast<double>(golden_.num_label_tokens)};
  }

  void expect_gradients(const NamedTensors& gradients) const {
    ASSERT_EQ(gradients.size(), golden_.gradients.size());
    double square = 0;
    for (const GoldenModel::Gradient& expected : golden_.gradients) {
      SCOPED_TRACE(expected.name);
      ASSERT_TRUE(gradients.contains(expected.name));
      const at::Tensor grad = gradients.at(expected.name).to(at::kDouble);
      ASSERT_EQ(grad.sizes(), at::IntArrayRef(expected.shape));
      const double allowed = std::max(tolerance_ * expected.absmax, expected.noise);
      expect_close(golden_sample(grad), expected.samples, "samples", 0, allowed);
      expect_close(grad.norm().item<double>(), expected.l2, "l2", tolerance_, allowed);
      expect_close(grad.abs().max().item<double>(), expected.absmax, "absmax", tolerance_, allowed);
      const double elements = std::sqrt(static_cast<double>(grad.numel()));
      expect_close(grad.sum().item<double>(), expected.sum, "sum", tolerance_, allowed * elements);
      square += grad.square().sum().item<double>();
    }
    expect_close(std::sqrt(square), golden_.grad_norm, "grad norm");
  }

  void expect_packed(const RunResult& run) const {
    expect_close(run.token_losses.view({1, -1}), golden_.packed.token_losses, "token losses");
    double square = 0;
    for (const GoldenModel::Gradient& expected : golden_.gradients) {
      const double l2 = run.gradients.at(expected.name).to(at::kDouble).norm().item<double>();
      if (expected.packed_l2) expect_close(l2, *expected.packed_l2, expected.name, tolerance_, expected.noise);
      square += l2 * l2;
    }
    expect_close(std::sqrt(square), golden_.packed.grad_norm, "grad norm");
  }

  bool has_experts() const { return model::read_model_config(golden_.folder).moe.has_value(); }

  // Layouts of tensor and expert parallelism for a batch.
  std::vector<LayoutCase> layouts(const TokenBatch& batch) const {
    std::vector<LayoutCase> all = all_layouts(batch.layout.sequences());
    // Key heads of linear attention cannot be shared by ranks.
    if (const auto delta_net = model::read_model_config(golden_.folder).delta_net)
      std::erase_if(all, [&](const LayoutCase& layout) { return delta_net->key_heads % layout.tp != 0; });
    return layouts_that_fit(golden_.folder, batch, all);
  }
  std::vector<LayoutCase> all_layouts(int64_t sequences) const {
    std::vector<LayoutCase> all;
    for (const int tp : {1, 2, 4})
      for (const bool sp : {false, true})
        if (sp == (tp > 1) || (!sp && !has_experts())) all.push_back({.tp = tp, .sequence_parallel = sp});
    if (!has_experts()) return all;
    for (const auto dispatcher : {nn::MoeOptions::Dispatcher::kAllToAll, nn::MoeOptions::Dispatcher::kAllGather})
      for (const auto& [tp, dp, ep, etp] : {std::array{1, 2, 2, 1},
                                            {2, 1, 2, 1},
                                            {2, 1, 1, 1},
                                            {2, 2, 2, 2},
                                            {2, 2, 4, 1},
                                            {4, 1, 2, 2},
                                            {1, 4, 4, 1},
                                            {1, 4, 2, 1},
                                            {2, 2, 2, 1}}) {
        if (dp > sequences) continue;
        LayoutCase layout{.tp = tp, .sequence_parallel = tp > 1, .dp = dp, .ep = ep, .etp = etp};
        layout.options.moe.dispatcher = dispatcher;
        all.push_back(layout);
      }
    return all;
  }

  // Every way of context parallelism that the heads allow, alone and with the rest.
  std::vector<LayoutCase> context_layouts(const TokenBatch& batch) const {
    using Mode = nn::ContextMode;
    const model::ModelConfig config = model::read_model_config(golden_.folder);
    std::vector<LayoutCase> all;
    if (config.delta_net) return all;  // refused: a state runs through the sequence
    const auto add = [&](int tp, int cp, Mode mode, std::vector<int> levels = {}) {
      const int64_t dealt = mode == Mode::kAllToAll ? cp : mode == Mode::kAllToAllRing ? levels[0] : 1;
      const int64_t kv_heads = std::max<int64_t>(1, config.num_kv_heads / tp);
      if (config.num_heads % tp != 0 || config.num_heads / tp % dealt != 0) return;
      if (kv_heads % dealt != 0 && dealt % kv_heads != 0) return;
      LayoutCase& c = all.emplace_back();
      c.tp = tp, c.cp = cp, c.cp_levels = std::move(levels);
      c.sequence_parallel = tp > 1 && (mode != Mode::kAllGather || has_experts());
      c.options.context_modes = {mode};
    };
    for (const int cp : {2, 4})
      for (const auto mode : {Mode::kRing, Mode::kAllGather, Mode::kAllToAll}) add(1, cp, mode);
    add(1, 4, Mode::kAllToAllRing, {2, 2});
    for (const auto mode : {Mode::kRing, Mode::kAllGather, Mode::kAllToAll}) add(2, 2, mode);
    add(2, 4, Mode::kAllToAllRing, {2, 2});
    add(2, 4, Mode::kRing);
    all.back().options.recompute = {.core_attention = true, .mlp = true, .norms = true};
    add(1, 2, Mode::kRing);
    all.back().options.recompute = {.layers = model::RecomputePlan::Layers::kUniform, .num_layers = 1};
    all.back().main_grad = true;
    add(1, 2, Mode::kRing);  // another way in each layer
    all.back().options.context_modes.clear();
    for (int64_t layer = 0; layer < config.num_layers; ++layer)
      all.back().options.context_modes.push_back(layer % 2 == 0 ? Mode::kRing : Mode::kAllGather);
    return layouts_that_fit(golden_.folder, batch, all);
  }

  GoldenModel golden_;
  double tolerance_ = kClose;
};

TEST_P(GoldenHf, padded_in_every_layout) {
  for (const LayoutCase& layout : layouts(padded())) {
    SCOPED_TRACE(layout.name());
    const RunResult run = run_layout(golden_.folder, padded(), layout);
    const int64_t s = golden_.logits.size(0);
    expect_close(run.logits.narrow(0, 0, s), golden_.logits, "logits", kClose, golden_.logits_noise);
    expect_close(run.token_losses.view_as(golden_.token_losses), golden_.token_losses, "token losses");
    expect_close(run.token_losses.sum().item<double>() / static_cast<double>(golden_.num_label_tokens), golden_.loss,
                 "loss");
    expect_gradients(run.gradients);
  }
}

TEST_P(GoldenHf, packed_in_every_layout) {
  for (const LayoutCase& layout : layouts(packed())) {
    SCOPED_TRACE(layout.name());
    expect_packed(run_layout(golden_.folder, packed(), layout));
  }
}

TEST_P(GoldenHf, padded_over_context_parallel_ranks) {
  for (const LayoutCase& layout : context_layouts(padded())) {
    SCOPED_TRACE(layout.name());
    const RunResult run = run_layout(golden_.folder, padded(), layout);
    expect_close(run.logits.narrow(0, 0, golden_.logits.size(0)), golden_.logits, "logits", kClose,
                 golden_.logits_noise);
    expect_close(run.token_losses.view_as(golden_.token_losses), golden_.token_losses, "token losses");
    expect_gradients(run.gradients);
  }
}

TEST_P(GoldenHf, packed_over_context_parallel_ranks) {
  for (const LayoutCase& layout : context_layouts(packed())) {
    SCOPED_TRACE(layout.name());
    expect_packed(run_layout(golden_.folder, packed(), layout));
  }
}

TEST_P(GoldenHf, unpadded_equals_padded) {
  const RunResult run = run_layout(golden_.folder, unpadded(), {});
  expect_gradients(run.gradients);
}

TEST_P(GoldenHf, main_grad_chunked_loss_and_recompute) {
  std::vector<LayoutCase> cases;
  for (const int tp : {1, 2})
    for (const bool sp : {false, true}) {
      if ((sp && tp == 1) || (has_experts() && sp != (tp > 1))) continue;
      LayoutCase direct{.tp = tp, .sequence_parallel = sp, .main_grad = true};
      cases.push_back(direct);
      direct.options.loss_chunk = 10;
      cases.push_back(direct);
      using Layers = model::RecomputePlan::Layers;
      direct.options.recompute = {.layers = Layers::kUniform, .num_layers = 3, .split_over_tp = true};
      cases.push_back(direct);
      direct.options.recompute = {.layers = Layers::kBlock, .num_layers = 2};
      cases.push_back(direct);
      direct.options.recompute = {.core_attention = true, .mlp = true, .norms = true};
      cases.push_back(direct);
      if (!has_experts()) continue;
      direct.options.recompute = {.mlp = true, .moe = true};
      cases.push_back(direct);
      direct.options.recompute = {};
      direct.options.moe = {.overlap_shared = true, .recompute_activation = true, .recompute_shared = true};
      cases.push_back(direct);
    }
  for (const LayoutCase& layout : layouts_that_fit(golden_.folder, padded(), cases)) {
    SCOPED_TRACE(layout.name());
    expect_gradients(run_layout(golden_.folder, padded(), layout).gradients);
  }
}

// bf16 weights, activations and logits: each number carries 8 bits, and errors of many roundings add up. Bounds: loss
// within 2 %, gradient norm within 5 %, of fp32.
TEST_P(GoldenHf, bf16_stays_near) {
  std::vector<LayoutCase> cases;
  for (const int tp : {1, 2}) {
    cases.push_back({.tp = tp, .sequence_parallel = tp > 1 && has_experts(), .main_grad = true});
    cases.back().options.dtype = at::kBFloat16;
  }
  for (const LayoutCase& layout : layouts_that_fit(golden_.folder, padded(), cases)) {
    const RunResult run = run_layout(golden_.folder, padded(), layout);
    const double loss = run.token_losses.sum().item<double>() / static_cast<double>(golden_.num_label_tokens);
    EXPECT_NEAR(loss, golden_.loss, 0.02 * golden_.loss);
    double square = 0;
    for (const auto& [name, grad] : run.gradients) square += grad.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(std::sqrt(square), golden_.grad_norm, 0.05 * golden_.grad_norm);
  }
}

// Both spellings of config.json describe the same model.
TEST_P(GoldenHf, classic_config) {
  const auto classic = golden_.folder / "config_classic.json";
  if (!std::filesystem::exists(classic)) return;
  const auto a = model::read_model_config(golden_.folder), b = model::read_model_config(io::read_json_file(classic));
  ASSERT_EQ(a.rope.has_value(), b.rope.has_value());
  if (a.rope) {
    EXPECT_EQ(ops::rope_frequencies(*a.rope, 32), ops::rope_frequencies(*b.rope, 32));
  }
  EXPECT_EQ(a.head_dim, b.head_dim);
  for (int64_t layer = 0; layer < a.num_layers; ++layer) EXPECT_EQ(a.window(layer), b.window(layer));
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
}

INSTANTIATE_TEST_SUITE_P(, GoldenHf, ::testing::ValuesIn(golden_or_none(golden_model_names())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::testing
