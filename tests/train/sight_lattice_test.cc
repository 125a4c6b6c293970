// Models that see and hear in every kind of layout against one rank: losses and gradient norms of three steps of SGD,
// in fp32, on files that the collator decodes. The micro-batches of a step have 0, 1, 2 and 5 images, and those of a
// model that hears also 0, 1, 2 and 4 sounds.
//
// A second test compares each gradient: one step at a rate that makes it larger than the weight that it changes.
//
// The lattice is TP {1,2,4} x SP x PP {1,2} x VPP {1,2} x CP {1,2,4} x DP {1,2} x packed, with at most 8 ranks. A part
// of it runs in the suite, all of it with MEGALITH_WHOLE_LATTICE set (make test-all).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "megalith/data/random.h"
#include "megalith/data/token_table.h"
#include "megalith/media/image_header.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/model/exchange/weights_in_memory.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wav.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kRows = 8, kSightSteps = 3;
constexpr int64_t kPatch = 4;
// Placeholders of the golden models.
constexpr int32_t kImagePad = 150, kSoundPad = 152;

// The media of a row.
struct MediaCounts {
  int images = 0, sounds = 0;
};

std::shared_ptr<const media::ImageProcessor> processor() {
  return std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{
      .patch_size = kPatch, .min_pixels = 64, .max_pixels = 400, .image_max_pixels = 400, .image_min_pixels = 16});
}

std::shared_ptr<const media::SoundProcessor> sound_processor() {
  return std::make_shared<const media::SoundProcessor>(media::SoundProcessorSettings{.bins = 16, .chunk = 100});
}

// Sounds of several lengths, from less than a chunk to three of them.
const std::vector<Tone>& tones() {
  static const std::vector<Tone> all{{.rate = 16000, .samples = 3'000},
                                     {.rate = 8000, .samples = 20'000, .hertz = 300},
                                     {.rate = 22050, .samples = 11'111, .hertz = 700}};
  return all;
}

// Text around images and sounds; a piece of a packed row, or a row. `sounds` holds the files of tones().
void append_piece(data::Sequence& row, const MediaCounts& counts, const fs::path& sounds, data::RandomStream& random) {
  static const std::vector<std::string> names{"odd_97x61.png", "square_112x112.png", "rgba_64x48.png",
                                              "photo_320x240.jpg", "grey_81x100.jpg"};
  const auto text = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      row.ids.push_back(static_cast<int32_t>(random.below(140)));
      row.labels.push_back(row.ids.back());
    }
  };
  const auto add_medium = [&](data::MediaReference medium, int32_t placeholder) {
    medium.first = static_cast<int64_t>(row.ids.size());
    row.ids.insert(row.ids.end(), static_cast<size_t>(medium.tokens), placeholder);
    row.labels.insert(row.labels.end(), static_cast<size_t>(medium.tokens), data::kIgnoredLabel);
    row.media.push_back(std::move(medium));
    text(1 + random.below(3));
  };
  const auto images_of = processor();
  const auto sounds_of = sound_processor();
  text(2 + random.below(4));
  for (int i = 0; i < counts.images; ++i) {
    const fs::path file = golden_dir() / "hf/vision/images" / names[random.below(names.size())];
    const media::ImageHeader header = media::read_image_header(file);
    const media::PatchGrid grid = images_of->grid({header.width, header.height}, file.string());
    add_medium(
        {.sources = {{.file = file.string()}}, .grid = {grid.t, grid.h, grid.w}, .tokens = images_of->tokens(grid)},
        kImagePad);
  }
  for (int i = 0; i < counts.sounds; ++i) {
    const size_t which = random.below(tones().size());
    const fs::path file = sounds / fmt::format("{}.wav", which);
    const Tone& tone = tones()[which];
    const int64_t frames = sounds_of->frames({tone.rate, 1, tone.samples}, file.string());
    add_medium({.sources = {{.file = file.string()}},
                .grid = {frames, 1, 1},
                .tokens = sounds_of->tokens(frames),
                .kind = data::MediaKind::kSound},
               kSoundPad);
  }
  text(2 + random.below(4));
}

// The rows of all steps. Packed ones have two pieces. `sounds` is empty for models that do not hear.
std::vector<data::Sequence> rows_with_media(bool packed, const fs::path& sounds) {
  std::vector<MediaCounts> counts{{0, 0}, {0, 0}, {1, 1}, {0, 0}, {1, 0}, {1, 2}, {5, 0}, {0, 4}};
  if (sounds.empty())
    for (MediaCounts& each : counts) each.sounds = 0;
  data::RandomStream random(17);
  std::vector<data::Sequence> rows;
  for (int i = 0; i < kRows * kSightSteps; ++i) {
    data::Sequence row;
    append_piece(row, counts[static_cast<size_t>(i) % counts.size()], sounds, random);
    if (packed) {
      const auto first = static_cast<int32_t>(row.ids.size());
      append_piece(row, counts[static_cast<size_t>(i + 3) % counts.size()], sounds, random);
      row.pieces = {first, static_cast<int32_t>(row.ids.size()) - first};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// A model of 4 layers and random weights, in a folder: the golden one's shape with 4 pixels per patch, and one level of
// deepstack so that stages of two layers can hold it.
class SightLattice : public ::testing::TestWithParam<std::string> {
 protected:
  SightLattice() {
    nlohmann::json config = golden_json("hf/" + GetParam() + "/config.json");
    nlohmann::json& parts = hears() ? config["thinker_config"] : config;
    nlohmann::json& vision = parts["vision_config"];
    if (hears()) {
      parts["audio_config"]["initializer_range"] = 0.2;  // 0.02 would leave nothing of a sound after three convolutions
      for (size_t i = 0; i < tones().size(); ++i) write_wav(folder_ / fmt::format("{}.wav", i), tones()[i]);
    }
    vision["patch_size"] = kPatch;
    if (vision.contains("deepstack_visual_indexes")) vision["deepstack_visual_indexes"] = {1};
    nlohmann::json& text = parts["text_config"];
    text["num_hidden_layers"] = 4;
    if (text.contains("layer_types") && text["layer_types"].is_array())
      text["layer_types"] = nlohmann::json(4, text["layer_types"][0]);
    std::ofstream(folder_ / "config.json") << config.dump();
    const model::ModelConfig read = model::read_model_config(io::read_json_file(folder_ / "config.json"));
    run_ranks(1, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
      const model::VirtualModels models(read, {}, {model::ChunkPlace::whole(read)}, context);
      models[0].initialize_parameters(3);
      model::save_pretrained(models, folder_ / "model", {});
    });
  }

  bool hears() const { return GetParam() == "qwen3_omni_moe"; }

  TrainerCase layout(int tp, bool sp, int pp, int vpp, int cp, int dp, bool packed) const {
    TrainerCase how{.tp = tp, .pp = pp, .dp = dp, .cp = cp};
    how.name = fmt::format("tp {}{} pp {} vpp {} cp {} dp {}{}", tp, sp ? " sp" : "", pp, vpp, cp, dp,
                           packed ? " packed" : "");
    if (vpp > 1) how.vpp = vpp;
    config::TrainingArguments& args = how.args;
    args.parallel.sequence_parallel = sp;
    args.run.max_steps = kSightSteps;
    args.batch.micro_batch_size = 2;
    args.batch.gradient_accumulation_steps = kRows / 2 / dp;
    args.optimizer.optimizer = config::OptimizerKind::kSgd;
    args.optimizer.optim = config::HfOptimizer::kSgd;
    args.optimizer.sgd_momentum = 0;
    args.optimizer.weight_decay = 0;
    args.optimizer.max_grad_norm = 0;
    args.optimizer.learning_rate = 0.05;
    args.optimizer.use_distributed_optimizer = dp > 1;
    args.towers.freeze_vision_tower = args.towers.freeze_multi_modal_projector = false;
    args.router.load_balancing_type = {"none"};  // router losses depend on the layout
    how.collator.images = processor();
    how.collator.sounds = hears() ? sound_processor() : nullptr;
    how.collator.positions = model::read_model_config(folder_ / "model").media->positions;
    if (packed) how.collator.padding = data::Padding::kNone;
    return how;
  }

  void expect_same(const RunLog& actual, const RunLog& expected) const {
    for (const char* number : {"loss", "grad_norm"}) {
      const std::vector<double> a = actual.numbers(number), b = expected.numbers(number);
      ASSERT_EQ(a.size(), static_cast<size_t>(kSightSteps));
      for (size_t i = 0; i < b.size(); ++i) expect_close(a[i], b[i], fmt::format("{} of step {}", number, i + 1));
    }
  }

  TempFolder folder_;
};

TEST_P(SightLattice, EqualsOneRank) {
  const bool whole = std::getenv("MEGALITH_WHOLE_LATTICE") != nullptr;
  int number = 0, compared = 0;
  for (const bool packed : {false, true}) {
    const std::vector<data::Sequence> rows = rows_with_media(packed, hears() ? folder_.path() : fs::path());
    const std::vector<data::Sequence> eval{rows.front()};
    const RunLog expected = run_training(folder_ / "model", layout(1, false, 1, 1, 1, 1, packed), rows, eval);
    for (const int tp : {1, 2, 4})
      for (const bool sp : {false, true})
        for (const int pp : {1, 2})
          for (const int vpp : {1, 2})
            for (const int cp : {1, 2, 4})
              for (const int dp : {1, 2}) {
                if ((sp && tp == 1) || (vpp > 1 && pp == 1) || tp * pp * cp * dp > 8) continue;
                if (hears() && tp > 1 && !sp) continue;  // experts need sequence parallelism beside tp
                // Every fifth: each size of each axis is met.
                if (!whole && number++ % 5 != 1) continue;
                const TrainerCase how = layout(tp, sp, pp, vpp, cp, dp, packed);
                SCOPED_TRACE(how.name);
                expect_same(run_training(folder_ / "model", how, rows, eval), expected);
                ++compared;
              }
  }
  EXPECT_GE(compared, hears() ? 13 : 16);
  fmt::print("{} layouts compared\n", compared);
}

// Dropout of updates in towers draws the same numbers when a block runs again.
TEST_P(SightLattice, RecomputedAdaptersDrawTheSameNumbers) {
  const std::vector<data::Sequence> rows = rows_with_media(false, hears() ? folder_.path() : fs::path());
  TrainerCase how = layout(1, false, 1, 1, 1, 1, false);
  how.args.run.finetuning_type = config::FinetuningType::kLora;
  how.args.lora.target = {"all"};
  how.args.lora.dropout = 0.3;
  how.args.optimizer.learning_rate = 1;
  const std::vector<data::Sequence> eval{rows.front()};
  const RunLog expected = run_training(folder_ / "model", how, rows, eval);
  how.args.recompute.granularity = config::RecomputeGranularity::kFull;
  const RunLog again = run_training(folder_ / "model", how, rows, eval);
  for (const char* number : {"loss", "grad_norm"}) EXPECT_EQ(again.numbers(number), expected.numbers(number)) << number;
}

using Weights = std::map<std::string, at::Tensor>;

// Returns the weights after one step on `rows`, under the names of files.
Weights weights_after_a_step(const fs::path& folder, TrainerCase how, const std::vector<data::Sequence>& rows) {
  how.args.run.max_steps = 1;
  how.args.optimizer.learning_rate = 100;
  Weights weights;
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(rows)));
    trainer.train();
    model::WeightStream stream(r.models, {.receiver = 0});
    while (const auto batch = stream.next())
      for (const model::NamedTensor& each : *batch)
        if (each.tensor.defined()) weights[each.name] = each.tensor;
  });
  return weights;
}

TEST_P(SightLattice, EachGradientEqualsThatOfOneRank) {
  for (const bool packed : {false, true}) {
    const std::vector<data::Sequence> rows = rows_with_media(packed, hears() ? folder_.path() : fs::path());
    const Weights expected = weights_after_a_step(folder_ / "model", layout(1, false, 1, 1, 1, 1, packed), rows);
    for (const TrainerCase& how : {layout(1, false, 2, 1, 1, 1, packed), layout(1, false, 2, 2, 1, 1, packed),
                                   layout(1, false, 1, 1, 4, 1, packed), layout(1, false, 2, 2, 4, 1, packed),
                                   layout(2, true, 2, 2, 1, 1, packed), layout(2, true, 2, 1, 2, 1, packed)}) {
      SCOPED_TRACE(how.name);
      const Weights actual = weights_after_a_step(folder_ / "model", how, rows);
      ASSERT_EQ(actual.size(), expected.size());
      // The gradient of a bias of keys is zero but for rounding.
      for (const auto& [name, weight] : expected) expect_close(actual.at(name), weight, name, kClose, 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, SightLattice, ::testing::Values("qwen2_5_vl", "qwen3_vl", "qwen3_omni_moe"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace megalith::testing
