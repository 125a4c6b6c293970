#include "tests/cuda/device_sight.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/training/bpe_trainer.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kRecords = 96, kVocab = 512, kLayers = 4;
constexpr int kMaxPixels = 1024;  // 16 tokens of 8 x 8 pixels

void write_tokenizer(const fs::path& folder) {
  tokenizer::WordCounter words(tokenizer::PreTokenization::kQwen2, 1);
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(fmt::format("what is in picture {} a house and {} trees\n", i, i % 7));
  words.add(texts);
  const auto trained =
      tokenizer::train_bpe(words, {.vocab_size = kVocab,
                                   .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>",
                                                      "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"}});
  for (const auto& [name, content] : tokenizer::tokenizer_files(trained)) io::write_text_file(folder / name, content);
}

// The golden model's, with four layers and wider heads in the tower.
json sight_config(const std::string& family, const fs::path& folder) {
  json config = golden_json("hf/" + family + "/config.json");
  json &text = config["text_config"], &vision = config["vision_config"];
  const auto tokenizer = tokenizer::Tokenizer::from_folder(folder);
  config["image_token_id"] = *tokenizer.id_of("<|image_pad|>");
  config["video_token_id"] = *tokenizer.id_of("<|video_pad|>");
  text["vocab_size"] = kVocab;
  text["num_hidden_layers"] = kLayers;
  if (family != "qwen3_5" && text.contains("layer_types")) text["layer_types"] = json(kLayers, "full_attention");
  const int width = family.starts_with("qwen2") ? 2 * 80 : 2 * 72;
  vision[family == "qwen2_vl" ? "embed_dim" : "hidden_size"] = width;
  if (family == "qwen2_vl") vision["hidden_size"] = text["hidden_size"];
  if (family == "qwen2_5_vl") vision["intermediate_size"] = 108;
  // Stages of two layers can hold one level.
  if (vision.contains("deepstack_visual_indexes")) vision["deepstack_visual_indexes"] = {1};
  return config;
}

void write_weights(const fs::path& folder) {
  const model::ModelConfig config = model::read_model_config(io::read_json_file(folder / "config.json"));
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
    models[0].initialize_parameters(3);
    model::save_pretrained(models, folder / "saved", {});
  });
  for (const auto& file : fs::directory_iterator(folder / "saved"))
    fs::rename(file.path(), folder / file.path().filename());
  fs::remove(folder / "saved");
}

std::string question_about(int images) {
  std::string question = "what is in";
  for (int i = 0; i < images; ++i) question += " <image>";
  return question;
}

json images_of(int first, int count) {
  static const std::vector<std::string> names{"odd_97x61.png", "square_112x112.png", "rgba_64x48.png",
                                              "grey_120x90.png", "bits_50x50.png"};
  json images = json::array();
  for (int i = first; i < first + count; ++i)
    images.push_back(fs::absolute(golden_dir() / "hf/vision/images" / names[i % names.size()]).string());
  return images;
}

json turns(const std::string& question, const std::string& answer) {
  return {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}};
}

void write_records(const fs::path& folder) {
  constexpr int kImages[] = {3, 0, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0};
  std::ofstream data(folder / "data.jsonl"), pairs(folder / "pairs.jsonl");
  for (int i = 0; i < kRecords; ++i) {
    const int count = kImages[i % 16];
    const std::string answer = fmt::format("a house and {} trees", i % 7);
    data << json{{"messages", turns(question_about(count), answer)}, {"images", images_of(i, count)}}.dump() << "\n";
    const int seen = std::min(count, 2);
    pairs << json{{"prompt", question_about(seen)},
                  {"chosen", answer},
                  {"rejected", "nothing"},
                  {"images", images_of(i, seen)}}
                 .dump()
          << "\n";
  }
}

}  // namespace

bool sees(const std::string& family) {
  return family == "qwen2_vl" || family == "qwen2_5_vl" || family == "qwen3_vl" || family == "qwen3_5";
}

std::vector<std::string> sight_words(const std::string& family) {
  if (!sees(family)) return {};
  return {std::string("--template=") + (family.starts_with("qwen3") ? "qwen3_vl_nothink" : "qwen2_vl"),
          fmt::format("--image_max_pixels={}", kMaxPixels), "--image_min_pixels=64", "--cutoff_len=256",
          "--disable_shuffling"};
}

std::string sight_obstacle(const std::string& family) {
#if defined(MEGALITH_PNG) && defined(MEGALITH_TOKENIZERS)
  static_cast<void>(family);
  return "";
#else
  return sees(family) ? "this build has no libpng, or no PCRE2 and utf8proc" : "";
#endif
}

void write_sight_model(const std::string& family, const fs::path& folder) {
  check(sees(family), "{} models do not see", family);
  write_tokenizer(folder);
  const json config = sight_config(family, folder);
  std::ofstream(folder / "config.json") << config.dump();
  const json& vision = config["vision_config"];
  std::ofstream(folder / "preprocessor_config.json") << json{
      {"patch_size", vision["patch_size"]},
      {"temporal_patch_size", vision["temporal_patch_size"]},
      {"merge_size", vision["spatial_merge_size"]},
      {"min_pixels", 64},
      {"max_pixels", 4 * kMaxPixels}}.dump();
  write_weights(folder);
  write_records(folder);
}

}  // namespace megalith::testing
