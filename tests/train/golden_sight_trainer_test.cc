// Steps of AdamW on the golden models that see, through the trainer: losses and gradient norms of transformers, with
// everything trained and with frozen parts. Those with a frozen language model are of
// tests/data/hf_trainer/make_frozen_language_model.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "megalith/data/micro_batch.h"
#include "megalith/run/resolve/model_settings.h"
#include "tests/support/golden_media.h"
#include "tests/train/golden_steps.h"

namespace megalith::testing {
namespace {

// Adds images and coordinates to the built-in collator's batches, as a program with pixels of its own does.
class PixelCollator {
 public:
  explicit PixelCollator(const GoldenMedia& media) : media_(media) {}

  data::MicroBatch operator()(std::span<const data::Sample> samples, const data::Collator& built_in) const {
    data::MicroBatch batch = built_in.collate(samples);
    const GoldenMediaBatch& golden = media_.main;
    std::vector<int64_t> rows;
    for (const data::Sample& sample : samples) rows.push_back(row_of(sample.row));
    const GoldenPixels images = golden_pixels(golden, rows, media_.settings.merge);
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t length = batch.layout.longest();
    const int64_t known = std::min(length, golden.input_ids.size(1));
    at::Tensor coordinates = at::zeros({3, count, length}, golden.position_ids.options());
    at::Tensor visual = at::full({count, length}, -1, at::kLong), audio = visual.clone();
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor given = golden.position_ids.select(1, rows[static_cast<size_t>(i)]);
      coordinates.select(1, i).narrow(1, 0, known).copy_(given.narrow(1, 0, known));
      if (images.visual_rows.defined()) visual[i].narrow(0, 0, known).copy_(images.visual_rows[i].narrow(0, 0, known));
      if (images.audio_rows.defined()) audio[i].narrow(0, 0, known).copy_(images.audio_rows[i].narrow(0, 0, known));
    }
    batch.layout = batch.layout.with_coordinates(coordinates.view({3, -1}));
    if (images.audio_features.defined()) {
      batch.audio_features = images.audio_features;
      batch.audio_lengths = images.audio_lengths;
      batch.audio_rows = audio.view({-1});
    }
    if (!images.pixels.defined()) return batch;
    batch.pixels = images.pixels;
    batch.grids = images.grids;
    batch.visual_rows = visual.view({-1});
    return batch;
  }

 private:
  int64_t row_of(const data::Sequence& row) const {
    const at::Tensor ids = at::tensor(row.ids, at::kLong);
    for (int64_t i = 0; i < media_.main.input_ids.size(0); ++i)
      if (at::equal(media_.main.input_ids[i], ids)) return i;
    throw InternalError("a row that is not in the golden batch");
  }

  const GoldenMedia& media_;
};

class GoldenHfSightTrainer : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string type = golden_model_type(GetParam());
    if (!model_type_supported(type)) GTEST_SKIP() << type << " is not supported";
    golden_ = read_golden_model(GetParam());
    media_ = read_golden_media(GetParam());
    config_ = model::read_model_config(golden_.folder);
  }

  // Runs the steps of "train", "train_frozen_tower", … if the layout fits the model.
  void expect_steps(const char* kind, bool freeze_tower, bool freeze_projector, TrainerCase how) const {
    golden_member(golden_.json, kind);
    how.args.towers = {.freeze_vision_tower = freeze_tower, .freeze_multi_modal_projector = freeze_projector};
    expect_steps(kind, golden_.json.at(kind), std::move(how));
  }
  void expect_steps(const char* kind, const nlohmann::json& expected, TrainerCase how) const {
    SCOPED_TRACE(kind);
    how.collate = PixelCollator(media_);
    try {
      model::layer_split(run::model_settings(how.effective(), at::kCPU).stages, config_, how.pp);
    } catch (const ConfigError& error) {
      return leave_out(how.name, error.what());
    }
    expect_golden_steps(golden_.folder, media_.main.input_ids, media_.main.labels, expected, how);
  }
  void expect_all_steps(const TrainerCase& how) const {
    expect_steps("train", false, false, how);
    expect_steps("train_frozen_tower", true, false, how);
    expect_steps("train_frozen_tower_projector", true, true, how);
    TrainerCase towers = how;
    towers.args.towers = {
        .freeze_vision_tower = false, .freeze_multi_modal_projector = false, .freeze_language_model = true};
    expect_steps("frozen language model", frozen_language_model().at("models").at(GetParam()), towers);
  }
  static nlohmann::json frozen_language_model() {
    std::ifstream file("tests/data/hf_trainer/frozen_language_model.json");
    return nlohmann::json::parse(file);
  }

  GoldenModel golden_;
  GoldenMedia media_;
  model::ModelConfig config_;
};

TEST_P(GoldenHfSightTrainer, one_rank) { expect_all_steps({}); }

TEST_P(GoldenHfSightTrainer, tensor_and_data_parallel) {
  TrainerCase spread{.name = "tp dp, distributed optimizer", .tp = 2, .dp = 2};
  spread.args.parallel.sequence_parallel = true;
  spread.args.optimizer.use_distributed_optimizer = true;
  if (media_.main.input_ids.size(0) % 2 != 0 || !splits_over_two(golden_.folder))
    return leave_out(spread.name, "its sizes are odd");
  expect_all_steps(spread);
}

TEST_P(GoldenHfSightTrainer, pipeline_and_context_parallel) {
  TrainerCase stages{.name = "pp", .pp = 2};
  // Layers that rows of the tower are added after are all on the first stage.
  const auto levels = static_cast<int64_t>(config_.vision->deepstack_blocks.size());
  if (levels > config_.num_layers / 2) stages.args.pipeline.first_stage_layers = static_cast<int>(levels);
  stages.args.batch.gradient_accumulation_steps = static_cast<int>(media_.main.input_ids.size(0));
  expect_all_steps(stages);
  const TrainerCase slices{.name = "cp", .cp = 2};
  if (config_.delta_net && config_.delta_net->key_heads % 2 != 0) return leave_out(slices.name, "key heads are odd");
  expect_all_steps(slices);
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenHfSightTrainer, ::testing::ValuesIn(golden_or_none(golden_sight_names())),
                         [](const auto& test) { return golden_test_name(test); });

}  // namespace
}  // namespace megalith::testing
