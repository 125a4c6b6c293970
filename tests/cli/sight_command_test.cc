// Models that see, as a person trains them: records with images in `megalith train`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/weight_files.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/cli/media_command.h"
#include "tests/cli/run_losses.h"
#include "tests/support/golden.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The shapes of golden models with a tokenizer of 512 ids, and records with 0, 1, 2 and 5 images.
class SightCommand : public MediaCommand {
 protected:
  SightCommand() {
    write_data();
    for (const char* name : {"qwen2_5_vl", "qwen3_vl"}) write_model(name);
  }

  ProcessResult train(const std::string& model, const std::string& output, const Words& more) const {
    return train_steps(model, model.starts_with("qwen3") ? "qwen3_vl_nothink" : "qwen2_vl", output,
                       with({"--media_dir=" + (golden_dir() / "hf/vision/images").string(), "--dataset=seen"}, more));
  }
  // A model of random weights, trained for three steps, as a start for other runs.
  std::string trained(const std::string& model) const {
    const std::string name = model + "_base";
    if (!fs::exists(folder_ / name)) {
      const auto result = train(model, name, with(kAll, {"--train_from_scratch"}));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
        if (!fs::exists(folder_ / name / file)) fs::copy_file(folder_ / model / file, folder_ / name / file);
    }
    return name;
  }

 private:
  void write_data() {
    std::ofstream texts(folder_ / "texts.txt"), seen(folder_ / "seen.jsonl"), read(folder_ / "read.jsonl"),
        pairs(folder_ / "pairs.jsonl"), broken(folder_ / "broken.jsonl");
    const Words images{"photo_320x240.jpg", "grey_81x100.jpg", "odd_97x61.png", "square_112x112.png", "rgba_64x48.png"};
    for (int i = 0; i < 40; ++i) texts << "what is in picture " << i << " a red house and " << i % 7 << " trees\n";
    for (const int count : {1, 0, 2, 5}) {
      std::string question = "what is in";
      for (int i = 0; i < count; ++i) question += " <image>";
      const Words used(images.begin(), images.begin() + count);
      const std::string answer = fmt::format("a house and {} trees", count);
      const json messages{{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}};
      seen << json{{"messages", messages}, {"images", used}}.dump() << "\n";
      broken << json{{"messages", messages}, {"images", used}}.dump() << "\n";
      pairs << json{{"instruction", question}, {"chosen", answer}, {"rejected", "nothing"}, {"images", used}}.dump()
            << "\n";
      read << json{{"instruction", "what is in it"}, {"output", answer}}.dump() << "\n";
    }
    std::ofstream moving(folder_ / "moving.jsonl");
    for (const int count : {3, 4, 2, 1}) {
      Words frames;  // all frames have one size
      for (int i = 0; i < count; ++i)
        frames.push_back(fs::absolute(fmt::format("examples/tiny/data/shapes/red_circle_{}.png", i)).string());
      const json messages{{{"role", "user"}, {"content", "<video>what happens after <image>"}},
                          {{"role", "assistant"}, {"content", fmt::format("{} pictures", count)}}};
      moving << json{{"messages", messages}, {"videos", json::array({json(frames)})}, {"images", {images[4]}}}.dump()
             << "\n";
    }
    broken << R"({"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "a"}],)"
           << R"( "images": ["gone.jpg"]})"
           << "\n";
    json info;
    for (const char* name : {"seen", "read", "broken", "moving"})
      info[name] = {{"file_name", std::string(name) + ".jsonl"}};
    for (const char* name : {"seen", "broken", "moving"}) {
      info[name]["formatting"] = "sharegpt";
      info[name]["columns"] = {{"messages", "messages"}, {"images", "images"}};
      info[name]["tags"] = {
          {"role_tag", "role"}, {"content_tag", "content"}, {"user_tag", "user"}, {"assistant_tag", "assistant"}};
    }
    info["moving"]["columns"]["videos"] = "videos";
    info["pairs"] = {
        {"file_name", "pairs.jsonl"},
        {"ranking", true},
        {"columns", {{"prompt", "instruction"}, {"chosen", "chosen"}, {"rejected", "rejected"}, {"images", "images"}}}};
    std::ofstream(folder_ / "dataset_info.json") << info.dump();
  }

  void write_model(const std::string& name) {
    const auto made = megalith({"data", "train-tokenizer", path("texts.txt"), "--vocab-size", "512", "--output",
                                path(name), "--special_tokens",
                                "<|endoftext|>,<|im_start|>,<|im_end|>,<|vision_start|>,<|vision_end|>,<|image_pad|>,"
                                "<|video_pad|>"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto tokenizer = tokenizer::Tokenizer::from_folder(folder_ / name);
    json config = golden_json("hf/" + name + "/config.json");
    config["text_config"]["vocab_size"] = 512;
    config["image_token_id"] = *tokenizer.id_of("<|image_pad|>");
    config["video_token_id"] = *tokenizer.id_of("<|video_pad|>");
    std::ofstream(folder_ / name / "config.json") << config.dump();
    const json& vision = config["vision_config"];
    std::ofstream(folder_ / name / "preprocessor_config.json") << json{
        {"patch_size", vision["patch_size"]},
        {"temporal_patch_size", vision["temporal_patch_size"]},
        {"merge_size", vision["spatial_merge_size"]},
        {"min_pixels", 64},
        {"max_pixels", 4096}}.dump();
  }
};

TEST_F(SightCommand, TrainsTheSameInEveryLayout) {
  for (const std::string model : {"qwen2_5_vl", "qwen3_vl"}) {
    SCOPED_TRACE(model);
    const Words from = with(kAll, {"--train_from_scratch"}), half = with(from, {"--per_device_train_batch_size=2"});
    const auto one = train(model, model + "1", from);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    const std::vector<double> expected = losses_in(folder_ / (model + "1"));
    ASSERT_EQ(expected.size(), 3U);
    const std::map<std::string, Words> layouts{
        {"tp", with(from, {"--nproc=2", "--tp=2", "--sequence_parallel"})},
        {"cp", with(from, {"--nproc=2", "--cp=2"})},
        {"dp", with(half, {"--nproc=2", "--use_distributed_optimizer"})},
        {"pp", with(half, {"--nproc=2", "--pp=2", "--gradient_accumulation_steps=2",
                           model == "qwen3_vl" ? "--decoder_first_pipeline_num_layers=3" : "--pp=2"})},
        {"packed", with(from, {"--neat_packing", "--cutoff_len=1024", "--per_device_train_batch_size=1"})},
        {"recomputed", with(from, {"--recompute_granularity=full"})}};
    for (const auto& [name, words] : layouts) {
      SCOPED_TRACE(name);
      const auto result = train(model, model + name, words);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const std::vector<double> actual = losses_in(folder_ / (model + name));
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
    }
  }
}

TEST_F(SightCommand, FreezesThePartsThatOptionsName) {
  const std::string base = trained("qwen3_vl");
  const std::vector<std::pair<Words, std::set<std::string>>> cases{
      {{}, {"text"}},
      {{"--freeze_vision_tower=false"},
       {"text", "visual.patch_embed", "visual.pos_embed", "visual.blocks", "visual.deepstack_merger_list"}},
      {{"--freeze_multi_modal_projector=false"}, {"text", "visual.merger"}},
      {{"--freeze_multi_modal_projector=false", "--freeze_language_model"}, {"visual.merger"}},
      {with(kAll, {"--vit_lr=0", "--aligner_lr=1e-4"}), {"text", "visual.merger"}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string output = fmt::format("frozen{}", i);
    const auto result = train(base, output, cases[i].first);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(changed(base, output), cases[i].second) << i;
  }
}

TEST_F(SightCommand, TextAloneLeavesTheTowerInItsFiles) {
  const std::string base = trained("qwen3_vl");
  // Two chunks of two layers could not hold the three deepstack layers.
  const auto result = train(
      base, "text",
      {"--dataset=read", "--nproc=2", "--pp=2", "--gradient_accumulation_steps=2", "--per_device_train_batch_size=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(changed(base, "text"), std::set<std::string>{"text"});
  expect_refused(train(base, "no", {"--dataset=read", "--freeze_vision_tower=false"}),
                 "freeze_vision_tower false has nothing to train: no dataset has images or videos");
  expect_refused(train(base, "no", {"--nproc=2", "--pp=2", "--gradient_accumulation_steps=2"}),
                 "the first pipeline chunk has only 2");
  expect_refused(train(base, "no", {"--vit_lr=1e-5"}), "set that to false");
  expect_refused(train(base, "no", {"--freeze_language_model"}), "leaves nothing to train");
}

TEST_F(SightCommand, AdaptersLeaveFrozenPartsAlone) {
  const std::string base = trained("qwen2_5_vl");
  const auto parts = [&](const std::string& name, const Words& more) {
    const auto result = train(base, name, with({"--finetuning_type=lora", "--lora_rank=2"}, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::set<std::string> found;
    const hf::WeightFiles files(folder_ / name, "adapter_model.safetensors");
    for (const std::string& tensor : files.names())
      found.insert(tensor.find("visual.merger") != std::string::npos ? "merger"
                   : tensor.find("visual.") != std::string::npos     ? "tower"
                                                                     : "text");
    EXPECT_NE(json::parse(std::ifstream(folder_ / name / "adapter_config.json")).at("exclude_modules"), json());
    return found;
  };
  EXPECT_EQ(parts("lora", {}), std::set<std::string>{"text"});
  EXPECT_EQ(parts("lora_tower", {"--freeze_vision_tower=false"}), (std::set<std::string>{"text", "tower"}));
  EXPECT_EQ(parts("lora_all", kAll), (std::set<std::string>{"text", "tower", "merger"}));
  // The adapter on all parts is the same in another layout.
  ASSERT_EQ(parts("lora_tp", with(kAll, {"--nproc=2", "--tp=2", "--sequence_parallel"})).size(), 3U);
  const std::vector<double> one = losses_in(folder_ / "lora_all"), two = losses_in(folder_ / "lora_tp");
  ASSERT_EQ(one.size(), 3U);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-4) << i;
}

TEST_F(SightCommand, PairsOfAnswersShareTheirImages) {
  const std::string base = trained("qwen2_5_vl");
  const Words dpo =
      with(kAll, {"--stage=dpo", "--dataset=pairs", "--calculate_per_token_loss=false", "--pref_beta=0.5"});
  const auto one = train(base, "dpo", dpo);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> expected = losses_in(folder_ / "dpo");
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_NEAR(expected[0], std::log(2.0), 1e-4);
  EXPECT_LT(expected[2], expected[0]);
  const auto tp = train(base, "dpo_tp", with(dpo, {"--nproc=2", "--tp=2", "--sequence_parallel"}));
  ASSERT_EQ(tp.exit_code, 0) << tp.err;
  const std::vector<double> spread = losses_in(folder_ / "dpo_tp");
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(spread[i], expected[i], 1e-4) << i;
}

TEST_F(SightCommand, AResumedRunContinuesBitForBit) {
  const Words saves = with(kAll, {"--train_from_scratch", "--save_strategy=steps", "--save_steps=2", "--max_steps=4"});
  ASSERT_EQ(train("qwen3_vl", "whole", saves).exit_code, 0);
  const auto result =
      train("qwen3_vl", "resumed", with(saves, {"--resume_from_checkpoint=" + path("whole/checkpoint-2")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(changed("whole", "resumed").empty());
}

TEST_F(SightCommand, LimitsOfPixelsDecideTokens) {
  // The report of tokenizing: "4 samples of 4 records, N tokens (…".
  const auto tokens = [&](const Words& more) {
    const auto result =
        train("qwen2_5_vl", "sized", with({"--train_from_scratch", "--max_steps=1", "--overwrite_output_dir"}, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t found = result.err.find("4 samples of 4 records, ");
    EXPECT_NE(found, std::string::npos) << result.err;
    return found == std::string::npos ? 0 : std::stoi(result.err.substr(found + 24));
  };
  const int usual = tokens({});
  EXPECT_LT(tokens({"--image_max_pixels=784"}), usual);
  EXPECT_GT(tokens({"--image_max_pixels=2048"}), usual);
  EXPECT_GT(tokens({"--image_max_pixels=4096", "--image_min_pixels=3900"}), tokens({"--image_max_pixels=4096"}));
}

// Videos given as lists of frames, beside images.
TEST_F(SightCommand, TrainsOnVideosTheSameInEveryLayout) {
  for (const std::string model : {"qwen2_5_vl", "qwen3_vl"}) {
    SCOPED_TRACE(model);
    const Words from = with(kAll, {"--train_from_scratch", "--dataset=moving", "--video_max_pixels=1024"});
    const auto one = train(model, model + "_moving", from);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    const std::vector<double> expected = losses_in(folder_ / (model + "_moving"));
    ASSERT_EQ(expected.size(), 3U);
    EXPECT_LT(expected[2], expected[0]);
    const std::map<std::string, Words> layouts{
        {"tp", {"--nproc=2", "--tp=2", "--sequence_parallel"}},
        {"cp", {"--nproc=2", "--cp=2"}},
        {"packed", {"--neat_packing", "--cutoff_len=1024", "--per_device_train_batch_size=1"}}};
    for (const auto& [name, words] : layouts) {
      SCOPED_TRACE(name);
      const auto result = train(model, model + "_moving_" + name, with(from, words));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const std::vector<double> actual = losses_in(folder_ / (model + "_moving_" + name));
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
    }
  }
}

TEST_F(SightCommand, LimitsOfVideosDecideTokensAndPositions) {
  const auto run = [&](const std::string& model, const Words& more) {
    const auto result =
        train(model, "limited",
              with({"--train_from_scratch", "--max_steps=1", "--dataset=moving", "--overwrite_output_dir"}, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  const auto tokens = [&](const std::string& model, const Words& more) {
    const std::string err = run(model, more);
    const size_t found = err.find("4 samples of 4 records, ");
    EXPECT_NE(found, std::string::npos) << err;
    return found == std::string::npos ? 0 : std::stoi(err.substr(found + 24));
  };
  EXPECT_LT(tokens("qwen2_5_vl", {"--video_max_pixels=1024"}), tokens("qwen2_5_vl", {"--video_max_pixels=4096"}));
  EXPECT_GT(tokens("qwen2_5_vl", {"--video_max_pixels=4096", "--video_min_pixels=3900"}),
            tokens("qwen2_5_vl", {"--video_max_pixels=4096"}));
  // Times of patches: in positions for qwen2_5_vl, in words for qwen3_vl.
  const auto loss = [&](const Words& more) {
    run("qwen2_5_vl", more);
    return losses_in(folder_ / "limited").at(0);
  };
  EXPECT_NE(loss({"--video_max_pixels=1024"}), loss({"--video_max_pixels=1024", "--video_fps=0.25"}));
  EXPECT_NE(tokens("qwen3_vl", {"--video_fps=2"}), tokens("qwen3_vl", {"--video_fps=0.01"}));
}

#ifdef MEGALITH_VIDEO
TEST_F(SightCommand, FramesOfVideoFilesAreLimited) {
  const std::string clip = fs::absolute("tests/data/media/video/clip.mp4").string();
  std::ofstream(folder_ / "clip.jsonl") << json{{"messages",
                                                 {{{"role", "user"}, {"content", "<video>what is it"}},
                                                  {{"role", "assistant"}, {"content", "a clip"}}}},
                                                {"videos", {clip}}}
                                               .dump()
                                        << "\n";
  const auto tokens = [&](const Words& more) {
    const auto result = train("qwen2_5_vl", "clip",
                              with({"--train_from_scratch", "--max_steps=1", "--dataset=" + path("clip.jsonl"),
                                    "--per_device_train_batch_size=1", "--video_fps=10", "--overwrite_output_dir"},
                                   more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t found = result.err.find("1 samples of 1 records, ");
    EXPECT_NE(found, std::string::npos) << result.err;
    return found == std::string::npos ? 0 : std::stoi(result.err.substr(found + 24));
  };
  EXPECT_GT(tokens({"--video_maxlen=8"}), tokens({"--video_maxlen=2"}));
}
#endif

// A file whose header is whole: only decoding it shows that the rest is missing.
TEST_F(SightCommand, DamageIsNamedBeforeTraining) {
  const fs::path image = golden_dir() / "hf/vision/images/photo_320x240.jpg";
  fs::copy_file(image, folder_ / "half.jpg");
  fs::resize_file(folder_ / "half.jpg", fs::file_size(image) / 2);
  std::ofstream(folder_ / "half.jsonl")
      << R"({"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "a"}],)"
      << R"( "images": ["half.jpg"]})"
      << "\n";
  const auto run = [&](const Words& more) {
    return train("qwen2_5_vl", "half",
                 with({"--train_from_scratch", "--max_steps=1", "--per_device_train_batch_size=1",
                       "--dataset=" + path("half.jsonl"), "--media_dir=" + path("")},
                      more));
  };
  const auto late = run({});
  EXPECT_NE(late.exit_code, 0);
  expect_contains(late.err, "half.jpg");
  const auto early = run({"--verify_media"});
  expect_refused(early, "half.jsonl:1");
  expect_contains(early.err, "half.jpg");
}

TEST_F(SightCommand, BadMediaAreNamedOrCounted) {
  const std::string base = trained("qwen2_5_vl");
  const auto result = train(base, "no", {"--dataset=broken"});
  expect_refused(result, "broken.jsonl:5");
  expect_contains(result.err, "gone.jpg");
  expect_refused(train(base, "no", {"--media_dir=" + path("")}), "photo_320x240.jpg does not exist");
  const auto skipped = train(base, "skipped", {"--dataset=broken", "--skip_broken_media"});
  ASSERT_EQ(skipped.exit_code, 0) << skipped.err;
  expect_contains(skipped.err, "1 records were left out because an image, a video or a sound cannot be read");
  std::ifstream metrics(folder_ / "skipped" / "metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  EXPECT_EQ(json::parse(line).at("left_out_samples"), 1);
  fs::create_directories(folder_ / "llama");
  for (const auto& entry : fs::directory_iterator(folder_ / "qwen2_5_vl"))
    fs::copy(entry.path(), folder_ / "llama" / entry.path().filename());
  std::ofstream(folder_ / "llama" / "config.json") << golden_json("hf/llama/config.json").dump();
  expect_refused(train("llama", "no", {"--train_from_scratch"}), "llama models have no vision tower");
}

}  // namespace
}  // namespace megalith::testing
