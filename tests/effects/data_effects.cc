// Datasets, templates, packing, samplers: what the rows of a tiny dataset become.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <filesystem>

#include "megalith/base/log.h"
#include "megalith/config/derive.h"
#include "megalith/data/sft/chat_encoder.h"
#include "megalith/data/sft/record_encoder.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/run/resolve/data_settings.h"
#include "tests/effects/effect.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

std::string records(const std::string& mark, int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format(R"({{"instruction": "{0}{1}", "output": "a{2}"}})"
                        "\n",
                        mark, i, std::string(static_cast<size_t>(i % 5), '.'));
  return text;
}

const TemporaryFolder& data_files() {
  static const TemporaryFolder folder({
      {"a.jsonl", records("a", 8)},
      {"b.jsonl", records("b", 6)},
      {"turns.jsonl", R"({"instruction": "q2", "output": "a2", "history": [["q1", "a1"]]})"},
      {"thoughts.jsonl", R"({"instruction": "q2", "output": "<think>\nhm\n</think>\n\na2",)"
                         R"( "history": [["q1", "<think>\nso\n</think>\n\na1"]]})"},
      {"quoting.jsonl", R"({"instruction": "what is <|eos|>?", "output": "an end"})"},
      {"dataset_info.json", R"({"named": {"file_name": "b.jsonl"}})"},
  });
  return folder;
}

const TemporaryFolder& other_files() {
  static const TemporaryFolder folder({{"a.jsonl", records("other", 3)}});
  return folder;
}

data::DataRequest request_of(const TrainingArguments& effective) {
  data::DataRequest request;
  request.data = run::sft_settings(effective);
  request.seed = static_cast<uint64_t>(effective.seeds.seed);
  request.tokenizer = tokenizer::Tokenizer::bytes();
  return request;
}

std::string data_text(const data::Sample& sample) {
  return fmt::format("{} | {} | {} {}\n", tokenizer::Tokenizer::bytes().decode(sample.row.ids), sample.row.labels,
                     sample.row.pieces, sample.row.pieces_attend);
}

std::string data_text(const std::shared_ptr<const data::Dataset>& dataset) {
  std::string text;
  for (int64_t i = 0; dataset && i < dataset->size(); ++i) text += data_text(dataset->sample(i));
  return text;
}

std::string rows(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const data::TokenizedData data = data::load_tokenized_data(request_of(effective));
  const auto& kept = effective.data.tokenized_path;
  return fmt::format("{}validation:\n{}kept: {}", data_text(data.train), data_text(data.validation),
                     kept && std::filesystem::exists(*kept));
}

std::string evaluation_steps(const TrainingArguments& args) {
  std::string text;
  for (const auto& [name, request] : data::evaluation_requests(request_of(config::derive(args).args)))
    text += fmt::format("set {}:\n{}", name, data_text(data::load_tokenized_data(request).train));
  return text;
}

std::string stream(const TrainingArguments& args) {
  const auto samples = data::open_streamed_data(request_of(config::derive(args).args)).train(0);
  std::string text = "stream:\n";
  while (const auto sample = samples->next()) text += data_text(*sample);
  return text;
}

std::string rows_or_stream(const TrainingArguments& args) { return args.data.streaming ? stream(args) : rows(args); }

std::string plan(const TrainingArguments& args) {
  const data::RowPlan plan = data::row_plan(run::sft_settings(config::derive(args).args));
  return fmt::format("kind {} cutoff {} packing {}", static_cast<int>(plan.kind), plan.cutoff, plan.packing);
}

// Passes conversations on to another encoder and notes how many threads the process has meanwhile.
class ThreadWatch : public data::TurnEncoder {
 public:
  ThreadWatch(std::shared_ptr<const data::TurnEncoder> encoder, std::atomic<int64_t>& most)
      : encoder_(std::move(encoder)), most_(most) {}
  std::vector<data::EncodedTurn> turns(const data::Conversation& conversation, bool last_turn_only) const override {
    for (int64_t now = running(), seen = most_; now > seen && !most_.compare_exchange_weak(seen, now);) {
    }
    return encoder_->turns(conversation, last_turn_only);
  }
  data::EncodedTurn answer(const data::Conversation& conversation, size_t response) const override {
    return encoder_->answer(conversation, response);
  }
  const data::TemplateTokens& tokens() const override { return encoder_->tokens(); }
  bool efficient_eos() const override { return encoder_->efficient_eos(); }
  std::string description() const override { return encoder_->description(); }

  static int64_t running() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); }

 private:
  const std::shared_ptr<const data::TurnEncoder> encoder_;
  std::atomic<int64_t>& most_;
};

// Whether further threads exist while records are tokenized. All are started before the first record of a batch that
// the calling thread takes, and none ends while there are records left.
std::string threads(const TrainingArguments& args) {
  data::DataRequest request = request_of(config::derive(args).args);
  std::atomic<int64_t> most = 0;
  request.turns = std::make_shared<ThreadWatch>(
      data::make_turn_encoder(request.data.chat, *request.tokenizer, request.tokenizer_folder), most);
  set_log_level("error");  // the progress of a task is shown by a thread of its own
  const int64_t before = ThreadWatch::running();
  data::load_tokenized_data(request);
  set_log_level("info");
  return most > before ? "several" : "one";
}

// The samples of the first steps.
std::string order(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const uint64_t seed = config::data_seed(effective);
  data::SamplerOptions options = effective.dialect == Dialect::kPretrain
                                     ? run::megatron_sampler(effective.sampler, 10, seed)
                                     : run::epoch_sampler(effective.sampler, 10, seed);
  if (options.by_length)
    options.lengths = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2, 6, 5, 3});
  const data::Sampler sampler(options);
  std::string text;
  data::SamplerPosition at;
  for (int i = 0; i < 3; ++i) {
    const auto step = sampler.step(at, 4);
    if (!step) return text + "end";
    text += fmt::format("{}\n", step->samples);
    at = step->after;
  }
  return text;
}

Words on(const std::string& names, const Words& more = {}) {
  Words words{"--dataset=" + names, "--dataset_dir=" + data_files().path().string(), "--template=vicuna"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Effects row_effects() {
  const std::string folder = data_files().path().string();
  const Words thoughts{"--dataset=thoughts.jsonl", "--dataset_dir=" + folder, "--template=deepseekr1"};
  return {
      {"dataset", {"--dataset_dir=" + folder, "--template=vicuna"}, {"--dataset=a.jsonl"}, {"--dataset=named"}, rows},
      {"dataset_dir",
       {"--dataset=a.jsonl", "--template=vicuna"},
       {"--dataset_dir=" + folder},
       {"--dataset_dir=" + other_files().path().string()},
       rows},
      {"template",
       {"--dataset=a.jsonl", "--dataset_dir=" + folder},
       {"--template=vicuna"},
       {"--template=default"},
       rows},
      {"cutoff_len", on("a.jsonl"), {}, {"--cutoff_len=4"}, rows},
      {"train_on_prompt", on("turns.jsonl"), {}, {"--train_on_prompt"}, rows},
      {"mask_history", on("turns.jsonl"), {}, {"--mask_history"}, rows},
      {"default_system", on("a.jsonl"), {}, {"--default_system=S"}, rows},
      {"enable_thinking", thoughts, {}, {"--enable_thinking=false"}, rows},
      {"preserve_thinking",
       {"--dataset=thoughts.jsonl", "--dataset_dir=" + folder, "--template=deepseekr1", "--mask_history"},
       {},
       {"--preserve_thinking"},
       rows},
      {"split_special_tokens", on("quoting.jsonl"), {}, {"--split_special_tokens"}, rows},
      {"mix_strategy", on("a.jsonl,b.jsonl"), {}, {"--mix_strategy=interleave_under"}, rows},
      {"interleave_probs",
       on("a.jsonl,b.jsonl", {"--mix_strategy=interleave_under"}),
       {"--interleave_probs=0.5,0.5"},
       {"--interleave_probs=0.1,0.9"},
       rows},
      {"val_size", on("a.jsonl"), {}, {"--val_size=2"}, rows},
      {"max_samples", on("a.jsonl"), {}, {"--max_samples=3"}, rows},
      {"packing", on("a.jsonl"), {}, {"--packing=true"}, rows},
      {"neat_packing", on("a.jsonl", {"--packing=true"}), {}, {"--neat_packing"}, rows},
      {"sequence_packing", on("a.jsonl"), {}, {"--sequence_packing"}, rows},
      {"tokenized_path", on("a.jsonl"), {}, {"--tokenized_path=" + folder + "/tokens"}, rows},
      {"preprocessing_batch_size",
       on("a.jsonl", {"--neat_packing", "--default_system=S", "--cutoff_len=100"}),
       {},
       {"--preprocessing_batch_size=2"},
       rows},
  };
}

}  // namespace

Effects data_effects() {
  Effects effects = row_effects();
  const Effects others{
      {"stage", {}, {}, {"--stage=pt"}, plan},
      {"eval_dataset", on("a.jsonl"), {}, {"--eval_dataset=b.jsonl"}, evaluation_steps},
      {"eval_on_each_dataset",
       on("a.jsonl", {"--eval_dataset=a.jsonl,b.jsonl"}),
       {},
       {"--eval_on_each_dataset"},
       evaluation_steps},
      {"streaming", on("a.jsonl"), {}, {"--streaming"}, rows_or_stream},
      {"buffer_size", on("a.jsonl", {"--streaming"}), {}, {"--buffer_size=1"}, stream},
      {"preprocessing_num_workers",
       on("a.jsonl"),
       {"--preprocessing_num_workers=1"},
       {"--preprocessing_num_workers=4"},
       threads},
      {"data_seed", {}, {}, {"--data_seed=7"}, order},
      {"train_sampling_strategy", {}, {}, {"--train_sampling_strategy=sequential"}, order},
      {"disable_shuffling", {}, {}, {"--disable_shuffling"}, order},
      {"group_by_length", {}, {}, {"--group_by_length"}, order},
      {"dataloader_type", {}, {}, {"--dataloader_type=cyclic"}, order, Dialect::kPretrain},
  };
  effects.insert(effects.end(), others.begin(), others.end());
  return effects;
}

}  // namespace megalith::testing
