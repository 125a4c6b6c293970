#include "megalith/run/resolve/data_settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "megalith/config/data_config.h"
#include "megalith/data/sft/tokenized_data.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using config::Stage;
using data::Packing;
using data::SampleKind;
using data::Thinking;

Packing packing(Stage stage, const config::DataConfig& data) {
  config::TrainingArguments args;
  args.run.stage = stage;
  args.data = data;
  return sft_settings(args).packing;
}

TEST(SftSettings, OnlyDocumentsArePackedWithoutBeingAsked) {
  EXPECT_EQ(packing(Stage::kPretrain, {}), Packing::kPlain);
  EXPECT_EQ(packing(Stage::kPretrain, {.packing = false}), Packing::kNone);
  EXPECT_EQ(packing(Stage::kPretrain, {.neat_packing = true}), Packing::kPlain);
  EXPECT_EQ(packing(Stage::kSft, {}), Packing::kNone);
  EXPECT_EQ(packing(Stage::kSft, {.packing = true}), Packing::kPlain);
  EXPECT_EQ(packing(Stage::kDpo, {}), Packing::kNone);
}

TEST(SftSettings, NeatPackingHasTwoNamesAndImpliesPacking) {
  EXPECT_EQ(packing(Stage::kSft, {.neat_packing = true}), Packing::kNeat);
  EXPECT_EQ(packing(Stage::kSft, {.sequence_packing = true}), Packing::kNeat);
  EXPECT_EQ(packing(Stage::kSft, {.packing = true, .neat_packing = true}), Packing::kNeat);
}

TEST(SftSettings, TheStageDecidesWhatRecordsBecome) {
  config::TrainingArguments args;
  for (const auto& [stage, kind] : {std::pair{Stage::kPretrain, SampleKind::kDocument},
                                    {Stage::kSft, SampleKind::kConversation},
                                    {Stage::kDpo, SampleKind::kPreference},
                                    {Stage::kKto, SampleKind::kFeedback},
                                    {Stage::kReward, SampleKind::kScoredPair},
                                    {Stage::kClassify, SampleKind::kLabelled}}) {
    args.run.stage = stage;
    EXPECT_EQ(sft_settings(args).kind, kind);
  }
}

TEST(SftSettings, AllCoresTokenizeUnlessANumberIsGiven) {
  config::TrainingArguments args;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_EQ(sft_settings(args).preprocessing_num_workers, std::max(1, cores));
  args.data.preprocessing_num_workers = 3;
  EXPECT_EQ(sft_settings(args).preprocessing_num_workers, 3);
}

TEST(SftSettings, TemplatesAreToldWhatOptionsSay) {
  config::TrainingArguments args;
  EXPECT_EQ(sft_settings(args).chat.name, std::nullopt);
  EXPECT_EQ(sft_settings(args).chat.options.default_system, std::nullopt);
  EXPECT_EQ(sft_settings(args).chat.options.thinking, Thinking::kOn);
  args.data.template_name = "qwen3";
  args.data.default_system = "";
  args.data.enable_thinking = false;
  EXPECT_EQ(sft_settings(args).chat.name, "qwen3");
  EXPECT_EQ(sft_settings(args).chat.options.default_system, "");
  EXPECT_EQ(sft_settings(args).chat.options.thinking, Thinking::kOff);
  args.data.enable_thinking = std::nullopt;
  EXPECT_EQ(sft_settings(args).chat.options.thinking, Thinking::kUnset);
}

// Folders of tokens are found again by these names, whatever version made them. A new name is right only where records
// become other tokens: then kEncodingVersion of data/sft/tokenized_data.cc rises.
class TokenCache : public ::testing::Test {
 protected:
  TokenCache() {
    std::ofstream(folder_ / "a.jsonl") << R"({"instruction": "q", "output": "a"}
{"instruction": "r", "output": "b"}
)";
    std::ofstream(folder_ / "p.jsonl") << R"({"prompt": "Q", "chosen": "good", "rejected": "bad"})"
                                       << "\n";
    std::ofstream(folder_ / "t.txt") << "one\ntwo\n";
    std::ofstream(folder_ / "chat_template.jinja")
        << "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
           "{% if add_generation_prompt %}<assistant>{% endif %}";
  }

  std::string name(Stage stage, const char* file, config::DataConfig data, bool own_template = false) const {
    config::TrainingArguments args;
    args.run.stage = stage;
    args.data = std::move(data);
    args.data.dataset = {file};
    args.data.dataset_dir = folder_.path().string();
    data::DataRequest request;
    request.data = sft_settings(args);
    request.tokenizer = tokenizer::Tokenizer::bytes();
    if (own_template) request.tokenizer_folder = folder_.path();
    request.cache_folder = folder_ / "cache";
    std::filesystem::remove_all(request.cache_folder);
    data::load_tokenized_data(request);
    return std::filesystem::directory_iterator(request.cache_folder)->path().filename();
  }

 private:
  testing::TempFolder folder_;
};

TEST_F(TokenCache, KeepsItsNames) {
  EXPECT_EQ(name(Stage::kSft, "a.jsonl",
                 {.template_name = "vicuna", .max_samples = 5, .default_system = "S", .enable_thinking = std::nullopt}),
            "5cc12e6c9ae3d779770a522889fbee3e");
  EXPECT_EQ(name(Stage::kSft, "a.jsonl",
                 {.template_name = "vicuna",
                  .cutoff_len = 40,
                  .val_size = 1,
                  .packing = true,
                  .neat_packing = true,
                  .enable_thinking = false}),
            "235f6922ed776abbb83c4774188a2740");
  EXPECT_EQ(name(Stage::kSft, "a.jsonl",
                 {.template_name = "vicuna", .cutoff_len = 100, .mask_history = true, .packing = true}),
            "ba396ea690b8322d60431fcb7b28c6bb");
  EXPECT_EQ(name(Stage::kPretrain, "t.txt", {.cutoff_len = 3}), "c6d4e035a61ea69991ab17b6d27668aa");
  EXPECT_EQ(name(Stage::kDpo, "p.jsonl",
                 {.template_name = "vicuna",
                  .mix_strategy = config::MixStrategy::kInterleaveOver,
                  .interleave_probs = {"1.0"}}),
            "2d06dd3e482597f5a20845cd4ba5ac55");
  EXPECT_EQ(name(Stage::kSft, "a.jsonl", {.enable_thinking = false, .preserve_thinking = true}, /*own_template=*/true),
            "8ac0100c9323ec00521e1b25f8a3c54d");
}

TEST(Samplers, FollowTheOptions) {
  config::SamplerConfig options;
  EXPECT_TRUE(epoch_sampler(options, 5, 1).shuffle);
  EXPECT_EQ(megatron_sampler(options, 5, 1).end, data::EpochEnd::kStop);
  options.disable_shuffling = true;
  options.dataloader_type = config::DataloaderType::kCyclic;
  EXPECT_FALSE(epoch_sampler(options, 5, 1).shuffle);
  EXPECT_TRUE(megatron_sampler(options, 5, 1).shuffle);
  EXPECT_EQ(megatron_sampler(options, 5, 1).end, data::EpochEnd::kContinue);
}

}  // namespace
}  // namespace megalith::run
