// The golden models that see and hear, with text alone and with the rows of their towers given: the decoder and its
// positions. The towers themselves have tests of their own.
//
// Tolerances as in golden_test.cc.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/model/families/family.h"
#include "megalith/model/model_input.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/golden_media.h"

namespace megalith::testing {
namespace {

using Kind = layout::TokenSegment::Kind;

class GoldenHfMedia : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_golden_media(GetParam());
    const auto type = golden_.config.at("model_type").get<std::string>();
    if (!model_type_supported(type)) GTEST_SKIP() << GetParam() << ": model type " << type << " is not supported";
    config_ = model::read_model_config(golden_.folder);
    if (config_.delta_net) tolerance_ = 2 * kClose;
  }

  // Rows of the mixed batch that are text alone, without padding.
  std::vector<int64_t> text_rows() const {
    std::vector<int64_t> rows;
    for (size_t row = 0; row < golden_.mixed.rows.size(); ++row)
      if (std::ranges::all_of(golden_.mixed.rows[row], [](const auto& s) { return s.kind == Kind::kText; }))
        rows.push_back(static_cast<int64_t>(row));
    return rows;
  }
  // Such a row, twice, cut to a length that all layouts can share: causal attention does not see what is cut off.
  TokenBatch text_batch(int64_t row) const {
    const int64_t length = golden_.mixed.attention_mask[row].sum().item<int64_t>() / 8 * 8;
    const auto twice = [&](const at::Tensor& x) { return x[row].narrow(0, 0, length).repeat({2}).contiguous(); };
    return {twice(golden_.mixed.input_ids), twice(golden_.mixed.labels), ops::SequenceLayout::dense(2, length), 1};
  }

  std::vector<LayoutCase> layouts(const TokenBatch& batch) const {
    std::vector<LayoutCase> all{
        {}, {.dp = 2}, {.tp = 2, .sequence_parallel = true}, {.tp = 4, .sequence_parallel = true}};
    if (!config_.moe) all.push_back({.tp = 2});
    if (config_.moe) {
      all.push_back({.dp = 2, .ep = 2, .etp = 1});
      all.push_back({.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1});
      all.push_back({.tp = 2, .sequence_parallel = true, .dp = 2, .ep = 2, .etp = 2});
    }
    std::erase_if(all, [&](const LayoutCase& layout) {
      return config_.num_heads % layout.tp != 0 || (config_.delta_net && config_.delta_net->key_heads % layout.tp != 0);
    });
    all.push_back({.cp = 2});
    if (!config_.delta_net) all.push_back({.tp = 2, .cp = 2, .sequence_parallel = true});
    return layouts_that_fit(golden_.folder, batch, all);
  }

  GoldenMedia golden_;
  model::ModelConfig config_;
  double tolerance_ = kClose;
};

TEST_P(GoldenHfMedia, text_alone_in_every_layout) {
  const std::vector<int64_t> rows = text_rows();
  for (const int64_t row : rows) {
    const TokenBatch batch = text_batch(row);
    const int64_t length = batch.layout.longest();
    std::optional<RunResult> first;
    for (const LayoutCase& layout : layouts(batch)) {
      SCOPED_TRACE(layout.name());
      RunResult run = run_layout(golden_.folder, batch, layout);
      // The last token of a cut row predicts nothing here.
      const at::Tensor expected = golden_.mixed.token_losses[row].narrow(0, 0, length - 1);
      for (int64_t copy = 0; copy < 2; ++copy)
        expect_close(run.token_losses.narrow(0, copy * length, length - 1), expected, "token losses");
      if (first)
        for (const auto& [name, gradient] : first->gradients)
          expect_close(run.gradients.at(name), gradient, name, tolerance_, 1e-7);
      else
        first = std::move(run);
    }
  }
}

// The text before the first medium of a row sees nothing but itself.
TEST_P(GoldenHfMedia, text_before_media_in_every_layout) {
  int64_t length = 0;
  for (const layout::TokenSegment& segment : golden_.main.rows[0]) {
    if (segment.kind != Kind::kText) break;
    length += segment.tokens;
  }
  ASSERT_GE(length, 4);
  length = length / 2 * 2;
  const at::Tensor ids = golden_.main.input_ids[0].narrow(0, 0, length).repeat({2}).contiguous();
  const TokenBatch batch{ids, ids, ops::SequenceLayout::dense(2, length), 1};
  std::optional<RunResult> first;
  for (const LayoutCase& layout : layouts(batch)) {
    SCOPED_TRACE(layout.name());
    RunResult run = run_layout(golden_.folder, batch, layout);
    for (int64_t copy = 0; copy < 2; ++copy)
      expect_close(run.logits.narrow(0, copy * length, length), golden_.main.logits.narrow(0, 0, length), "logits",
                   2 * tolerance_);
    if (first)
      for (const auto& [name, gradient] : first->gradients)
        expect_close(run.gradients.at(name), gradient, name, 2 * tolerance_, 1e-6);
    else
      first = std::move(run);
  }
}

// Both spellings of config.json describe the same model.
TEST_P(GoldenHfMedia, classic_config) {
  const auto classic = golden_.folder / "config_classic.json";
  if (!std::filesystem::exists(classic)) return;
  const auto other = model::read_model_config(io::read_json_file(classic));
  EXPECT_TRUE(model::differences(config_, other).empty());
  EXPECT_EQ(config_.dtype, other.dtype);
}

// Three equal coordinates turn as one position does, bit for bit.
TEST_P(GoldenHfMedia, text_turns_as_before) {
  const auto layout = ops::SequenceLayout::packed({5, 9});
  const at::Tensor positions = layout.positions(at::kCPU).repeat({3, 1});
  const ops::RopeAngles plain = ops::rope_angles(*config_.rope, layout, at::kCPU);
  for (const at::Tensor& coordinates : {positions, positions.to(at::kFloat)}) {
    const auto angles = ops::rope_angles(*config_.rope, layout.with_coordinates(coordinates), at::kCPU);
    expect_identical(angles.cos, plain.cos, "cos");
    expect_identical(angles.sin, plain.sin, "sin");
  }
}

// The batches' positions follow from their segments, exactly.
TEST_P(GoldenHfMedia, positions_of_the_batches) {
  for (const GoldenMediaBatch* batch : {&golden_.main, &golden_.mixed})
    for (size_t row = 0; row < batch->rows.size(); ++row) {
      SCOPED_TRACE(row);
      const layout::TokenPositions positions = layout::token_positions(batch->rows[row], golden_.settings);
      const auto length = static_cast<int64_t>(positions.time.size());
      const at::Tensor expected = batch->position_ids.select(1, static_cast<int64_t>(row)).to(at::kFloat);
      EXPECT_EQ(length, batch->attention_mask[static_cast<int64_t>(row)].sum().item<int64_t>());
      int64_t axis = 0;
      for (const auto& values : {positions.time, positions.height, positions.width})
        expect_identical(at::tensor(values), expected[axis++].narrow(0, 0, length), "positions");
    }
}

TEST_P(GoldenHfMedia, positions_of_prompts) {
  ASSERT_FALSE(golden_.prompts.empty());
  for (const GoldenPrompt& prompt : golden_.prompts) {
    const layout::TokenPositions positions = layout::token_positions(prompt.segments, golden_.settings);
    size_t axis = 0;
    int64_t tokens = 0;
    for (const layout::TokenSegment& segment : prompt.segments) tokens += layout::tokens_in(segment, golden_.settings);
    EXPECT_EQ(tokens, std::ssize(positions.time));
    for (const auto& values : {positions.time, positions.height, positions.width}) {
      const std::vector<double>& expected = prompt.positions.at(axis++);
      ASSERT_EQ(values.size(), expected.size());
      // The file has fractions with few digits; whole numbers must be equal.
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(values[i], expected[i], golden_.settings.time == layout::TimeRule::kSeconds ? 1e-4 : 0) << i;
    }
    if (!prompt.other_rule) {
      EXPECT_NEAR(static_cast<double>(positions.next) - static_cast<double>(tokens), prompt.rope_delta, 1e-4);
    }
  }
}

// The decoder alone, with the rows of the library's tower in place of the placeholders' embeddings. Models that add
// rows of the tower between their layers, and those that hear, are left out.
TEST_P(GoldenHfMedia, decoder_with_the_rows_of_the_tower) {
  const nlohmann::json vision = golden_.config.value("vision_config", nlohmann::json());
  if (!vision.is_object() || !vision.value("deepstack_visual_indexes", nlohmann::json::array()).empty()) return;
  const GoldenMediaBatch& batch = golden_.main;
  const int64_t rows = batch.input_ids.size(0), length = batch.input_ids.size(1);
  const hf::WeightFiles files(golden_.folder);
  const at::Tensor ids = batch.input_ids.view({-1});
  at::Tensor hidden =
      files.tensor(*hf::their_name(model::name_map(config_), "embedding.weight")).index_select(0, ids).clone();
  hidden.index_copy_(0, ids.eq(golden_.config.at("image_token_id").get<int64_t>()).nonzero().view({-1}),
                     batch.image_embeds);
  const auto whole =
      ops::SequenceLayout::dense(rows, length).with_coordinates(batch.position_ids.reshape({3, -1}).contiguous());
  const at::Tensor targets = model::shift_labels(batch.labels.view({-1}), whole);
  for (const int cp : config_.delta_net ? std::vector<int>{1} : std::vector<int>{1, 2}) {
    SCOPED_TRACE(cp);
    run_ranks(cp, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = cp, .cp = cp}));
      context.rng().seed(layout::seeds_for_base(1, 0, 0, 0));
      const model::ChunkPlace place{.first_layer = 0, .num_layers = config_.num_layers, .embedding = false};
      const model::VirtualModels models(config_, {}, {place}, context);
      model::load_weights(models, golden_.folder, config_, 1);
      const auto slice = [&](const at::Tensor& x) { return nn::slice_tokens(x, whole, r.rank, cp); };
      model::ModelInput input{.layout = nn::slice_layout(whole, r.rank, cp), .hidden = slice(hidden)};
      const at::NoGradGuard no_grad;
      const auto gathered = [&](const at::Tensor& x) { return nn::gather_slices(x, input.layout, context.cp()); };
      const at::Tensor logits = gathered(models[0].forward(input));
      const int64_t first = batch.logits.size(0);  // the first row without its padding
      expect_close(logits.narrow(0, 0, first).narrow(1, 0, config_.vocab_size), batch.logits, "logits", 2 * tolerance_);
      input.targets = slice(targets);
      const at::Tensor losses = gathered(models[0].forward(input)).view({rows, length});
      expect_close(losses, batch.token_losses, "token losses", tolerance_);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfMedia, ::testing::ValuesIn(golden_or_none(golden_media_names())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

}  // namespace
}  // namespace megalith::testing
