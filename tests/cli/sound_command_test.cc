// A model that hears, as a person trains it: records with sounds in `megalith train`.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/cli/media_command.h"
#include "tests/cli/run_losses.h"
#include "tests/support/golden.h"
#include "tests/support/wav.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The shape of the golden model with a tokenizer of 512 ids, and records with sounds of several lengths and rates, with
// an image beside one, and with text alone.
class SoundCommand : public MediaCommand {
 protected:
  SoundCommand() {
    write_wav(folder_ / "short.wav", {.rate = 16000, .samples = 3'000});
    write_wav(folder_ / "slow.wav", {.rate = 8000, .samples = 20'000, .hertz = 300});
    write_wav(folder_ / "odd.wav", {.rate = 22050, .samples = 11'111, .hertz = 700});
    write_wav(folder_ / "long.wav", {.rate = 16000, .samples = 40'700, .hertz = 150});
    write_data();
    write_model();
  }

  // Router losses depend on the layout, so they are off.
  ProcessResult train(const std::string& model, const std::string& output, const Words& more) const {
    return train_steps(model, "qwen3_omni_nothink", output,
                       with({"--dataset=heard", "--moe_router_load_balancing_type=none"}, more));
  }

  // A trained model with tensors of a talker, which nothing here knows, as a start for other runs.
  std::string trained() const {
    const std::string name = "base";
    if (fs::exists(folder_ / name)) return name;
    const auto result = train("omni", name, with(kAll, {"--train_from_scratch", "--dataset=mixed"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"})
      if (!fs::exists(folder_ / name / file)) fs::copy_file(folder_ / "omni" / file, folder_ / name / file);
    add_talker(folder_ / name);
    return name;
  }

  // Writes a data set with one record beside the others, and names it in dataset_info.json as `heard` is.
  std::string with_record(const std::string& name, const json& record) const {
    std::ofstream(folder_ / (name + ".jsonl")) << record.dump() << "\n";
    return "--dataset=" + path(name + ".jsonl");
  }
  static json record(const std::string& question, const Words& sounds) {
    return {{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", "a bell"}}}},
            {"audios", sounds}};
  }

 private:
  void write_data() const {
    std::ofstream texts(folder_ / "texts.txt"), heard(folder_ / "heard.jsonl"), mixed(folder_ / "mixed.jsonl"),
        read(folder_ / "read.jsonl"), pairs(folder_ / "pairs.jsonl");
    for (int i = 0; i < 40; ++i) texts << "what do you hear in sound " << i << " a bell and " << i % 7 << " birds\n";
    const Words sounds{"short.wav", "slow.wav", "odd.wav", "long.wav"};
    const std::string image = fs::absolute(golden_dir() / "hf/vision/images/odd_97x61.png").string();
    for (const int count : {1, 0, 2, 4}) {
      std::string question = "what do you hear";
      for (int i = 0; i < count; ++i) question += " <audio>";
      const Words used(sounds.begin(), sounds.begin() + count);
      const std::string answer = fmt::format("a bell and {} birds", count);
      const auto messages = [&](const std::string& text) {
        return json{{{"role", "user"}, {"content", text}}, {{"role", "assistant"}, {"content", answer}}};
      };
      heard << json{{"messages", messages(question)}, {"audios", used}}.dump() << "\n";
      const bool sees = count % 2 == 0;
      mixed << json{{"messages", messages(sees ? "<image> and " + question : question)},
                    {"audios", used},
                    {"images", sees ? Words{image} : Words{}}}
                   .dump()
            << "\n";
      read << json{{"instruction", "what do you hear"}, {"output", answer}}.dump() << "\n";
      pairs << json{{"instruction", question}, {"chosen", answer}, {"rejected", "nothing"}, {"audios", used}}.dump()
            << "\n";
    }
    // The names of LLaMA-Factory's mllm_audio_demo, and columns with other names.
    json info;
    for (const char* name : {"heard", "mixed"})
      info[name] = {
          {"file_name", std::string(name) + ".jsonl"},
          {"formatting", "sharegpt"},
          {"columns", {{"messages", "messages"}, {"audios", "audios"}}},
          {"tags",
           {{"role_tag", "role"}, {"content_tag", "content"}, {"user_tag", "user"}, {"assistant_tag", "assistant"}}}};
    info["mixed"]["columns"]["images"] = "images";
    info["read"] = {{"file_name", "read.jsonl"}};
    info["pairs"] = {
        {"file_name", "pairs.jsonl"},
        {"ranking", true},
        {"columns", {{"prompt", "instruction"}, {"chosen", "chosen"}, {"rejected", "rejected"}, {"audios", "audios"}}}};
    std::ofstream(folder_ / "dataset_info.json") << info.dump();
  }

  void write_model() const {
    const auto made = megalith({"data", "train-tokenizer", path("texts.txt"), "--vocab-size", "512", "--output",
                                path("omni"), "--special_tokens",
                                "<|endoftext|>,<|im_start|>,<|im_end|>,<|vision_start|>,<|vision_end|>,<|image_pad|>,"
                                "<|video_pad|>,<|audio_start|>,<|audio_end|>,<|audio_pad|>"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const auto tokenizer = tokenizer::Tokenizer::from_folder(folder_ / "omni");
    json config = golden_json("hf/qwen3_omni_moe/config.json");
    json& thinker = config["thinker_config"];
    thinker["text_config"]["vocab_size"] = 512;
    thinker["audio_config"]["initializer_range"] = 0.2;  // 0.02 would leave nothing of a sound after three convolutions
    thinker["image_token_id"] = *tokenizer.id_of("<|image_pad|>");
    thinker["video_token_id"] = *tokenizer.id_of("<|video_pad|>");
    thinker["audio_token_id"] = *tokenizer.id_of("<|audio_pad|>");
    std::ofstream(folder_ / "omni" / "config.json") << config.dump();
    const json& vision = thinker["vision_config"];
    std::ofstream(folder_ / "omni" / "preprocessor_config.json") << json{
        {"patch_size", vision["patch_size"]},
        {"temporal_patch_size", vision["temporal_patch_size"]},
        {"merge_size", vision["spatial_merge_size"]},
        {"min_pixels", 64},
        {"max_pixels", 4096},
        {"feature_extractor_type", "WhisperFeatureExtractor"},
        {"feature_size", 16},
        {"sampling_rate", 16000},
        {"hop_length", 160},
        {"n_fft", 400}}.dump();
  }

  static void add_talker(const fs::path& model) {
    std::map<std::string, at::Tensor> tensors{{"talker.model.layers.0.mlp.up_proj.weight", at::randn({3, 4})},
                                              {"code2wav.codebook", at::arange(7, at::kLong)}};
    {
      const hf::WeightFiles files(model);
      for (const std::string& name : files.names()) tensors[name] = files.tensor(name).clone();
    }
    std::vector<hf::WeightSpec> specs;
    for (const auto& [name, tensor] : tensors)
      specs.push_back({name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
    hf::WeightWriter writer(model, specs);
    writer.create_files();
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.sync();
  }
};

TEST_F(SoundCommand, TrainsTheSameInEveryLayout) {
  for (const std::string data : {"heard", "mixed"}) {
    SCOPED_TRACE(data);
    const Words from = with(kAll, {"--train_from_scratch", "--dataset=" + data});
    const Words half = with(from, {"--per_device_train_batch_size=2"});
    const auto one = train("omni", data + "1", from);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    const std::vector<double> expected = losses_in(folder_ / (data + "1"));
    ASSERT_EQ(expected.size(), 3U);
    EXPECT_LT(expected[2], expected[0]);
    // With images, the two layers with deepstack rows are on the first stage.
    const std::map<std::string, Words> layouts{
        {"tp", with(from, {"--nproc=2", "--tp=2", "--sequence_parallel"})},
        {"cp", with(from, {"--nproc=2", "--cp=2"})},
        {"dp", with(half, {"--nproc=2", "--use_distributed_optimizer"})},
        {"ep", with(half, {"--nproc=2", "--ep=2"})},
        {"pp", with(half, {"--nproc=2", "--pp=2", "--gradient_accumulation_steps=2",
                           "--decoder_first_pipeline_num_layers=2"})},
        {"packed", with(from, {"--neat_packing", "--cutoff_len=1024", "--per_device_train_batch_size=1"})},
        {"recomputed", with(from, {"--recompute_granularity=full"})}};
    for (const auto& [name, words] : layouts) {
      SCOPED_TRACE(name);
      const auto result = train("omni", data + name, words);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const std::vector<double> actual = losses_in(folder_ / (data + name));
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
    }
  }
}

TEST_F(SoundCommand, FreezesThePartsThatOptionsName) {
  const std::string base = trained();
  const std::set<std::string> tower{"audio_tower.conv2d1",  "audio_tower.conv2d2", "audio_tower.conv2d3",
                                    "audio_tower.conv_out", "audio_tower.layers",  "audio_tower.ln_post"},
      projector{"audio_tower.proj1", "audio_tower.proj2"};
  const auto and_text = [](std::set<std::string> parts) {
    parts.insert("text");
    return parts;
  };
  // The vision tower, which no record reaches, and the talker stay as they are in all cases.
  const std::vector<std::pair<Words, std::set<std::string>>> cases{
      {{}, {"text"}},
      {{"--freeze_vision_tower=false"}, and_text(tower)},
      {{"--freeze_multi_modal_projector=false"}, and_text(projector)},
      {{"--freeze_multi_modal_projector=false", "--freeze_language_model"}, projector},
      {with(kAll, {"--vit_lr=0", "--aligner_lr=1e-4"}), and_text(projector)}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string output = fmt::format("frozen{}", i);
    const auto result = train(base, output, cases[i].first);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(changed(base, output), cases[i].second) << i;
  }
}

TEST_F(SoundCommand, TextAloneLeavesTheTowersInTheirFiles) {
  const std::string base = trained();
  const auto result = train(base, "text", {"--dataset=read"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(changed(base, "text"), std::set<std::string>{"text"});
  expect_refused(train(base, "no", {"--dataset=read", "--freeze_vision_tower=false"}),
                 "freeze_vision_tower false has nothing to train");
  // Records with and without sounds, from two data sets.
  const auto both = train(base, "both", with(kAll, {"--dataset=heard,read", "--per_device_train_batch_size=8"}));
  ASSERT_EQ(both.exit_code, 0) << both.err;
  expect_contains(both.err, "8 samples of 8 records");
}

TEST_F(SoundCommand, AResumedRunContinuesBitForBit) {
  const Words saves = with(kAll, {"--dataset=mixed", "--train_from_scratch", "--save_strategy=steps", "--save_steps=2",
                                  "--max_steps=4", "--per_device_train_batch_size=1"});
  ASSERT_EQ(train("omni", "whole", saves).exit_code, 0);
  const auto result = train("omni", "resumed", with(saves, {"--resume_from_checkpoint=" + path("whole/checkpoint-2")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(changed("whole", "resumed").empty());
}

TEST_F(SoundCommand, PairsOfAnswersShareTheirSounds) {
  const std::string base = trained();
  const Words dpo =
      with(kAll, {"--stage=dpo", "--dataset=pairs", "--calculate_per_token_loss=false", "--pref_beta=0.5"});
  const auto one = train(base, "dpo", dpo);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> expected = losses_in(folder_ / "dpo");
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_NEAR(expected[0], std::log(2.0), 1e-4);
  EXPECT_LT(expected[2], expected[0]);
}

TEST_F(SoundCommand, AdaptersAndEvaluationHear) {
  const std::string base = trained();
  const auto lora = train(base, "lora", {"--finetuning_type=lora", "--lora_rank=2", "--freeze_vision_tower=false"});
  ASSERT_EQ(lora.exit_code, 0) << lora.err;
  std::set<std::string> parts;
  const hf::WeightFiles files(folder_ / "lora", "adapter_model.safetensors");
  for (const std::string& tensor : files.names())
    parts.insert(tensor.find("audio_tower.") != std::string::npos ? "tower" : "text");
  EXPECT_EQ(parts, (std::set<std::string>{"text", "tower"}));
  const auto loss = [&](const std::string& data) {
    const auto result =
        megalith({"eval", "--use_cpu", "--model_name_or_path=" + path(base), "--template=qwen3_omni_nothink",
                  "--dataset_dir=" + folder_.path().string(), "--eval_dataset=" + data, "--cutoff_len=512", "--json"},
                 {{"XDG_CACHE_HOME", path("cache")}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out).at("eval_loss").get<double>() : 0;
  };
  // Another sound under the same name gives another loss.
  const double before = loss("heard");
  write_wav(folder_ / "short.wav", {.rate = 16000, .samples = 3'000, .hertz = 2'000});
  EXPECT_NE(loss("heard"), before);
}

// Such a run has no use for the vision tower, and so its files lack it; whatever needs only the rest takes them.
TEST_F(SoundCommand, FilesOfARunFromScratchHaveTheTowersOfItsData) {
  const Words steps{"--save_strategy=steps", "--save_steps=2", "--max_steps=3"};
  const Words from = with(with(kAll, {"--train_from_scratch", "--dataset=heard"}), steps);
  const auto made = train("omni", "scratch", from);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"})
    if (!fs::exists(folder_ / "scratch" / file)) fs::copy_file(folder_ / "omni" / file, folder_ / "scratch" / file);
  const hf::WeightFiles files(folder_ / "scratch");
  for (const std::string& name : files.names()) EXPECT_EQ(name.find("visual."), std::string::npos) << name;
  const auto succeeds = [&](const ProcessResult& result) { EXPECT_EQ(result.exit_code, 0) << result.err; };
  succeeds(train("omni", "resumed", with(from, {"--resume_from_checkpoint=" + path("scratch/checkpoint-2")})));
  EXPECT_TRUE(changed("scratch", "resumed").empty());
  succeeds(train("scratch", "on_sounds", {"--dataset=heard"}));
  succeeds(train("scratch", "on_texts", with(steps, {"--dataset=read"})));
  EXPECT_EQ(changed("scratch", "on_texts"), std::set<std::string>{"text"});
  // A run on texts alone passes the audio tower through, also when it is resumed.
  succeeds(train("scratch", "resumed_texts",
                 with(steps, {"--dataset=read", "--resume_from_checkpoint=" + path("on_texts/checkpoint-2")})));
  EXPECT_TRUE(changed("on_texts", "resumed_texts").empty());
  const Words generate{"generate", "--model", path("scratch"), "--use_cpu", "--max_new_tokens=2", "--prompt=what"};
  succeeds(megalith(generate));
  succeeds(megalith(with(generate, {"--audio=" + path("odd.wav")})));
  succeeds(megalith({"convert", "--checkpoint_path", path("scratch"), "--output_path", path("converted")}));
  succeeds(megalith({"eval", "--use_cpu", "--model_name_or_path=" + path("scratch"), "--template=qwen3_omni_nothink",
                     "--dataset_dir=" + folder_.path().string(), "--eval_dataset=heard", "--cutoff_len=512"},
                    {{"XDG_CACHE_HOME", path("cache")}}));
  const std::string lacks = "describes a vision tower, but the files have no tensor of it";
  expect_refused(train("scratch", "no", {"--dataset=mixed"}), lacks);
  const std::string image = fs::absolute(golden_dir() / "hf/vision/images/odd_97x61.png").string();
  expect_refused(megalith(with(generate, {"--image=" + image})), lacks);
}

// `generate` reads sounds as training does, in every layout and from files of prompts; a model without ears refuses.
TEST_F(SoundCommand, TextsAreAboutSounds) {
  const std::string base = trained(), image = fs::absolute(golden_dir() / "hf/vision/images/odd_97x61.png").string();
  const auto run = [&](const Words& more) {
    return megalith(with(
        {"generate", "--model", path(base), "--use_cpu", "--json", "--max_new_tokens=12", "--temperature=1"}, more));
  };
  const auto generate = [&](const Words& more) {
    std::vector<json> lines;
    const auto result = run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) lines.push_back(json::parse(line));
    return lines;
  };
  const Words one{"--prompt=what do you hear <audio>", "--audio=" + path("short.wav")};
  const auto text = generate(one);
  ASSERT_EQ(text.size(), 1U);
  EXPECT_EQ(text[0]["audios"], json{path("short.wav")});
  EXPECT_NE(generate({one[0], "--audio=" + path("slow.wav")})[0]["ids"], text[0]["ids"]);
  // A file of prompts, with an image beside a sound, in several layouts.
  std::ofstream(folder_ / "prompts") << json{{"prompt", "what do you hear <audio>"}, {"audios", {path("short.wav")}}}
                                     << "\n"
                                     << json{{"prompt", "<image> and <audio> and <audio>"},
                                             {"images", {image}},
                                             {"audios", {path("odd.wav"), path("long.wav")}}}
                                     << "\n"
                                     << json("no sound") << "\n";
  const Words file{"--input=" + path("prompts")};
  const auto lines = generate(file);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["ids"], text[0]["ids"]);
  EXPECT_FALSE(lines[2].contains("audios"));
  for (const Words& layout :
       {Words{"--nproc=2", "--tp=2", "--sequence_parallel"}, {"--nproc=2", "--cp=2"}, {"--nproc=2"}})
    EXPECT_EQ(generate(with(file, layout)), lines) << layout.back();
  // Mistakes are named.
  expect_refused(run({"--prompt=<audio> or <audio>", one[1]}), "the prompt has 2 <audio> markers for 1 sounds");
  expect_refused(run({one[0], "--audio=gone.wav"}), "the sound gone.wav does not exist");
  expect_refused(run({one[0], "--audio=" + image}), "odd_97x61.png");
  expect_refused(run(with(file, {one[1]})), "--audio belongs to --prompt");
  expect_refused(megalith({"generate", "--model", (golden_dir() / "hf/qwen3_vl").string(), "--ids", "--prompt=[1]",
                           one[1], "--use_cpu"}),
                 "qwen3_vl models take no sounds; use a model that hears");
}

// Frames given as images, and a sound beside each video: merged by time with the option, one after the other without.
TEST_F(SoundCommand, VideosAreReadWithTheirSound) {
  std::ofstream watched(folder_ / "watched.jsonl");
  for (const int count : {3, 4, 2, 1}) {
    Words frames;
    for (int i = 0; i < count; ++i)
      frames.push_back(fs::absolute(fmt::format("examples/tiny/data/shapes/red_circle_{}.png", i)).string());
    json one = record("<video><audio>what happens", {count % 2 == 0 ? "slow.wav" : "odd.wav"});
    one["videos"] = json::array({frames});
    watched << one.dump() << "\n";
  }
  watched.close();
  const Words from = with(kAll, {"--train_from_scratch", "--dataset=" + path("watched.jsonl"),
                                 "--video_max_pixels=1024", "--use_audio_in_video"});
  const auto losses = [&](const std::string& output, const Words& more) {
    const auto result = train("omni", output, with(from, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses_in(folder_ / output);
  };
  const std::vector<double> expected = losses("watched", {});
  ASSERT_EQ(expected.size(), 3U);
  const std::map<std::string, Words> layouts{
      {"tp", {"--nproc=2", "--tp=2", "--sequence_parallel"}},
      {"cp", {"--nproc=2", "--cp=2"}},
      {"packed", {"--neat_packing", "--cutoff_len=1024", "--per_device_train_batch_size=1"}}};
  for (const auto& [name, words] : layouts) {
    SCOPED_TRACE(name);
    const std::vector<double> actual = losses("watched_" + name, words);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
  }
  EXPECT_NE(losses("apart", {"--use_audio_in_video=false"}), expected);
}

TEST_F(SoundCommand, BadSoundsAreNamedOrCounted) {
  const auto run = [&](const Words& more) {
    return train("omni", "bad",
                 with({"--train_from_scratch", "--max_steps=1", "--per_device_train_batch_size=1"}, more));
  };
  expect_refused(run({with_record("gone", record("<audio>", {"gone.wav"}))}),
                 "gone.jsonl:1: the sound gone.wav does not");
  expect_refused(run({with_record("count", record("<audio>", {"odd.wav", "odd.wav"}))}),
                 "count.jsonl:1: the text has 1 marker <audio> and the record 2 sound(s)");
  std::ofstream(folder_ / "empty.wav");
  expect_refused(run({with_record("empty", record("<audio>", {"empty.wav"}))}), "empty.wav");
  std::ofstream(folder_ / "text.wav") << "not a sound at all, whatever its name says";
  expect_refused(run({with_record("text", record("<audio>", {"text.wav"}))}), "text.wav");
  write_wav(folder_ / "click.wav", {.rate = 16000, .samples = 100});
  expect_refused(run({with_record("click", record("<audio>", {"click.wav"}))}), "less than the 10 ms of a frame");
  write_wav(folder_ / "cut.wav", {.rate = 16000, .samples = 9'000});
  fs::resize_file(folder_ / "cut.wav", 10'000);
  expect_refused(run({with_record("cut", record("<audio>", {"cut.wav"}))}), "cut.wav: a damaged sound file");
  // Left out and counted.
  std::ofstream(folder_ / "some.jsonl") << record("<audio>", {"gone.wav"}).dump() << "\n"
                                        << record("<audio>", {"odd.wav"}).dump() << "\n"
                                        << record("<audio>", {"long.wav"}).dump() << "\n";
  const auto some = run({"--dataset=" + path("some.jsonl"), "--skip_broken_media", "--cutoff_len=36"});
  ASSERT_EQ(some.exit_code, 0) << some.err;
  expect_contains(some.err, "1 samples of 3 records");
  expect_contains(some.err, "1 records were left out because an image, a video or a sound cannot be read");
  expect_contains(some.err, "1 records were left out because cutoff_len would cut an image, a video or a sound");
}

TEST_F(SoundCommand, OptionsAndFilesThatDoNotFitAreRefused) {
  const Words from{"--train_from_scratch", "--max_steps=1"};
  expect_refused(train("omni", "no", with(from, {"--audio_sampling_rate=8000"})), "16000 samples per second");
  expect_refused(train("omni", "no", with(from, {"--use_audio_in_video"})), "no dataset has a column of videos");
  json processor = json::parse(std::ifstream(folder_ / "omni/preprocessor_config.json"));
  processor["feature_size"] = 128;
  std::ofstream(folder_ / "omni/preprocessor_config.json") << processor.dump();
  expect_refused(train("omni", "no", from), "feature_size");
  // A model that neither sees nor hears.
  std::ofstream(folder_ / "omni/config.json") << golden_json("hf/qwen3_moe/config.json").dump();
  expect_refused(train("omni", "no", from), "qwen3_moe models have no audio tower");
}

}  // namespace
}  // namespace megalith::testing
