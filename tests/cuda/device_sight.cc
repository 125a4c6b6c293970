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
#include "tests/support/wav.h"

namespace megalith::testing {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kRecords = 96, kVocab = 512, kLayers = 4;
constexpr int kMaxPixels = 1024;  // 16 tokens of 8 x 8 pixels
constexpr const char* kHears = "qwen3_omni_moe";

void write_tokenizer(const fs::path& folder) {
  tokenizer::WordCounter words(tokenizer::PreTokenization::kQwen2, 1);
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(fmt::format("what is in picture {} a house and {} trees\n", i, i % 7));
  words.add(texts);
  const auto trained = tokenizer::train_bpe(
      words,
      {.vocab_size = kVocab,
       .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
                          "<|image_pad|>", "<|video_pad|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"}});
  for (const auto& [name, content] : tokenizer::tokenizer_files(trained)) io::write_text_file(folder / name, content);
}

// The part of config.json that holds those of the towers.
json& parts_of(json& config) { return config.contains("thinker_config") ? config["thinker_config"] : config; }

// An audio tower of the golden model's depth, with frames and heads of the published sizes. The usual deviation of
// initial weights, 0.02, would leave nothing of a sound after three convolutions.
void widen_audio(json& audio) {
  audio["num_mel_bins"] = 128;
  audio["d_model"] = 2 * 64;
  audio["encoder_attention_heads"] = 2;
  audio["initializer_range"] = 0.2;
}

// The golden model's, with four layers and wider heads in the towers.
json sight_config(const std::string& family, const fs::path& folder) {
  json config = golden_json("hf/" + family + "/config.json");
  json& parts = parts_of(config);
  json &text = parts["text_config"], &vision = parts["vision_config"];
  const auto tokenizer = tokenizer::Tokenizer::from_folder(folder);
  parts["image_token_id"] = *tokenizer.id_of("<|image_pad|>");
  parts["video_token_id"] = *tokenizer.id_of("<|video_pad|>");
  if (family == kHears) {
    parts["audio_token_id"] = *tokenizer.id_of("<|audio_pad|>");
    widen_audio(parts["audio_config"]);
  }
  if (text.contains("num_experts_per_tok")) text["num_experts_per_tok"] = text["num_experts"];
  text["vocab_size"] = kVocab;
  text["num_hidden_layers"] = kLayers;
  if (family != "qwen3_5" && text.contains("layer_types") && text["layer_types"].is_array())
    text["layer_types"] = json(kLayers, "full_attention");
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

std::string question_about(int images, int sounds) {
  std::string question = "what is in";
  for (int i = 0; i < images; ++i) question += " <image>";
  for (int i = 0; i < sounds; ++i) question += " <audio>";
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

constexpr int kSounds = 3;

std::string sound_name(int number) { return fmt::format("{}.wav", number % kSounds); }

// From less than a chunk of frames to three of them.
void write_sounds(const fs::path& folder) {
  const Tone tones[kSounds] = {{.rate = 16000, .samples = 3'000},
                               {.rate = 8000, .samples = 20'000, .hertz = 300},
                               {.rate = 22050, .samples = 11'111, .hertz = 700}};
  for (int i = 0; i < kSounds; ++i) write_wav(folder / sound_name(i), tones[i]);
}

json sounds_of(int first, int count) {
  json sounds = json::array();
  for (int i = first; i < first + count; ++i) sounds.push_back(sound_name(i));
  return sounds;
}

json turns(const std::string& question, const std::string& answer) {
  return {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}};
}

void write_records(const fs::path& folder, bool hears) {
  constexpr int kImages[] = {3, 0, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0}, kHeard[] = {0, 2, 1, 0, 0, 0, 4, 1};
  if (hears) write_sounds(folder);
  std::ofstream data(folder / "data.jsonl"), pairs(folder / "pairs.jsonl");
  for (int i = 0; i < kRecords; ++i) {
    const int count = kImages[i % 16], heard = hears ? kHeard[i % 8] : 0;
    const std::string answer = fmt::format("a house and {} trees", i % 7);
    json record{{"messages", turns(question_about(count, heard), answer)}, {"images", images_of(i, count)}};
    const int seen = std::min(count, 2);
    json pair{{"prompt", question_about(seen, heard)},
              {"chosen", answer},
              {"rejected", "nothing"},
              {"images", images_of(i, seen)}};
    if (hears) record["audios"] = pair["audios"] = sounds_of(i, heard);
    data << record.dump() << "\n";
    pairs << pair.dump() << "\n";
  }
}

}  // namespace

bool sees(const std::string& family) {
  return family == "qwen2_vl" || family == "qwen2_5_vl" || family == "qwen3_vl" || family == "qwen3_5" ||
         family == kHears;
}

std::vector<std::string> sight_words(const std::string& family, const fs::path& folder) {
  if (!sees(family)) return {};
  const char* const chat = family == kHears              ? "qwen3_omni_nothink"
                           : family.starts_with("qwen3") ? "qwen3_vl_nothink"
                                                         : "qwen2_vl";
  std::vector<std::string> words{std::string("--template=") + chat, fmt::format("--image_max_pixels={}", kMaxPixels),
                                 "--image_min_pixels=64", "--cutoff_len=256", "--disable_shuffling"};
  // Sounds are beside the records. Router losses depend on the layout.
  if (family == kHears)
    words.insert(words.end(), {"--media_dir=" + folder.string(), "--moe_router_load_balancing_type=none"});
  return words;
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
  json config = sight_config(family, folder);
  std::ofstream(folder / "config.json") << config.dump();
  const json& vision = parts_of(config)["vision_config"];
  std::ofstream(folder / "preprocessor_config.json") << json{
      {"patch_size", vision["patch_size"]},
      {"temporal_patch_size", vision["temporal_patch_size"]},
      {"merge_size", vision["spatial_merge_size"]},
      {"min_pixels", 64},
      {"max_pixels", 4 * kMaxPixels}}.dump();
  write_weights(folder);
  write_records(folder, family == kHears);
}

}  // namespace megalith::testing
