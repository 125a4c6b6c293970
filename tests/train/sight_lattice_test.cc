// Models that see in every kind of layout against one rank: losses and gradient norms of three steps of SGD, in fp32,
// on files of images that the collator decodes. The micro-batches of a step have 0, 1, 2 and 5 images.
//
// The lattice is TP {1,2,4} x SP x PP {1,2} x VPP {1,2} x CP {1,2,4} x DP {1,2} x packed, with at most 8 ranks. A part
// of it runs in the suite, all of it with MEGALITH_WHOLE_LATTICE set (make test-all).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/data/random.h"
#include "megalith/data/token_table.h"
#include "megalith/media/image_header.h"
#include "megalith/media/image_processor.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kRows = 8, kSightSteps = 3;
constexpr int64_t kPatch = 4, kPad = 150;

std::shared_ptr<const media::ImageProcessor> processor() {
  return std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{
      .patch_size = kPatch, .min_pixels = 64, .max_pixels = 400, .image_max_pixels = 400, .image_min_pixels = 16});
}

// Text around images; a piece of a packed row, or a row.
void append_piece(data::Sequence& row, int images, data::RandomStream& random) {
  static const std::vector<std::string> names{"odd_97x61.png", "square_112x112.png", "rgba_64x48.png",
                                              "photo_320x240.jpg", "grey_81x100.jpg"};
  const auto text = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      row.ids.push_back(static_cast<int32_t>(random.below(140)));
      row.labels.push_back(row.ids.back());
    }
  };
  const auto images_of = processor();
  text(2 + random.below(4));
  for (int i = 0; i < images; ++i) {
    const fs::path file = golden_dir() / "hf/vision/images" / names[random.below(names.size())];
    const media::ImageHeader header = media::read_image_header(file);
    const media::PatchGrid grid = images_of->grid({header.width, header.height}, file.string());
    const int64_t tokens = images_of->tokens(grid);
    row.media.push_back({.sources = {{.file = file.string()}},
                         .grid = {grid.t, grid.h, grid.w},
                         .first = static_cast<int64_t>(row.ids.size()),
                         .tokens = tokens});
    row.ids.insert(row.ids.end(), static_cast<size_t>(tokens), kPad);
    row.labels.insert(row.labels.end(), static_cast<size_t>(tokens), data::kIgnoredLabel);
    text(1 + random.below(3));
  }
  text(2 + random.below(4));
}

// The rows of all steps. Packed ones have two pieces.
std::vector<data::Sequence> rows_with_images(bool packed) {
  const std::vector<int> images{0, 0, 1, 0, 1, 1, 5, 0};
  data::RandomStream random(17);
  std::vector<data::Sequence> rows;
  for (int i = 0; i < kRows * kSightSteps; ++i) {
    data::Sequence row;
    append_piece(row, images[static_cast<size_t>(i) % images.size()], random);
    if (packed) {
      const auto first = static_cast<int32_t>(row.ids.size());
      append_piece(row, images[static_cast<size_t>(i + 3) % images.size()], random);
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
    nlohmann::json& vision = config["vision_config"];
    vision["patch_size"] = kPatch;
    if (vision.contains("deepstack_visual_indexes")) vision["deepstack_visual_indexes"] = {1};
    nlohmann::json& text = config["text_config"];
    text["num_hidden_layers"] = 4;
    if (text.contains("layer_types")) text["layer_types"] = nlohmann::json(4, text["layer_types"][0]);
    std::ofstream(folder_ / "config.json") << config.dump();
    const model::ModelConfig read = model::read_model_config(io::read_json_file(folder_ / "config.json"));
    run_ranks(1, [&](const Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
      const model::VirtualModels models(read, {}, {model::ChunkPlace::whole(read)}, context);
      models[0].initialize_parameters(3);
      model::save_pretrained(models, folder_ / "model", {});
    });
  }

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
    how.collator.images = processor();
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
    const std::vector<data::Sequence> rows = rows_with_images(packed);
    const std::vector<data::Sequence> eval{rows.front()};
    const RunLog expected = run_training(folder_ / "model", layout(1, false, 1, 1, 1, 1, packed), rows, eval);
    for (const int tp : {1, 2, 4})
      for (const bool sp : {false, true})
        for (const int pp : {1, 2})
          for (const int vpp : {1, 2})
            for (const int cp : {1, 2, 4})
              for (const int dp : {1, 2}) {
                if ((sp && tp == 1) || (vpp > 1 && pp == 1) || tp * pp * cp * dp > 8) continue;
                // Every fifth: each size of each axis is met.
                if (!whole && number++ % 5 != 1) continue;
                const TrainerCase how = layout(tp, sp, pp, vpp, cp, dp, packed);
                SCOPED_TRACE(how.name);
                expect_same(run_training(folder_ / "model", how, rows, eval), expected);
                ++compared;
              }
  }
  EXPECT_GT(compared, 15);
  fmt::print("{} layouts compared\n", compared);
}

INSTANTIATE_TEST_SUITE_P(, SightLattice, ::testing::Values("qwen2_5_vl", "qwen3_vl"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace megalith::testing
