// Options of data as settings of module `data`: the stage becomes a kind of sample, and the three names of packing
// become one enumeration.
#include "megalith/run/resolve/data_settings.h"

#include <algorithm>
#include <thread>

#include "megalith/base/error.h"

namespace megalith::run {

namespace {

data::SampleKind kind_of_samples(config::Stage stage) {
  switch (stage) {
    case config::Stage::kPretrain:
      return data::SampleKind::kDocument;
    case config::Stage::kSft:
      return data::SampleKind::kConversation;
    case config::Stage::kDpo:
      return data::SampleKind::kPreference;
    case config::Stage::kKto:
      return data::SampleKind::kFeedback;
    case config::Stage::kReward:
      return data::SampleKind::kScoredPair;
    case config::Stage::kClassify:
      return data::SampleKind::kLabelled;
  }
  throw InternalError("a stage without samples");
}

// neat_packing and sequence_packing both mean neat packing, which implies packing. Documents are packed by default, and
// never neatly.
data::Packing packing_of(const config::DataConfig& data, config::Stage stage) {
  const bool documents = stage == config::Stage::kPretrain;
  if (!documents && (data.neat_packing || data.sequence_packing)) return data::Packing::kNeat;
  return data.packing.value_or(documents) ? data::Packing::kPlain : data::Packing::kNone;
}

// Three states: unset keeps the thoughts of records and passes nothing to a Jinja template.
data::Thinking thinking_of(std::optional<bool> enable_thinking) {
  if (!enable_thinking) return data::Thinking::kUnset;
  return *enable_thinking ? data::Thinking::kOn : data::Thinking::kOff;
}

// Tokenizing is a matter of minutes and uses every core; hardware_concurrency() may return 0 for "unknown".
int all_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace

data::SftSettings sft_settings(const config::TrainingArguments& args) {
  const config::DataConfig& data = args.data;
  data::SftSettings settings;
  settings.dataset = data.dataset;
  settings.dataset_dir = data.dataset_dir;
  settings.max_samples = data.max_samples;
  settings.mix_strategy = data.mix_strategy;
  settings.interleave_probs = data.interleave_probs;
  settings.val_size = data.val_size;
  settings.eval_dataset = data.eval_dataset;
  settings.eval_on_each_dataset = data.eval_on_each_dataset;
  settings.kind = kind_of_samples(args.run.stage);
  settings.cutoff_len = data.cutoff_len;
  settings.packing = packing_of(data, args.run.stage);
  settings.train_on_prompt = data.train_on_prompt;
  settings.mask_history = data.mask_history;
  settings.chat = {.name = data.template_name,
                   .options = {.default_system = data.default_system,
                               .thinking = thinking_of(data.enable_thinking),
                               .preserve_thinking = data.preserve_thinking,
                               .split_special_tokens = args.source.split_special_tokens}};
  settings.preprocessing_batch_size = data.preprocessing_batch_size;
  settings.preprocessing_num_workers = data.preprocessing_num_workers.value_or(all_cores());
  settings.buffer_size = data.buffer_size;
  settings.tokenized_path = data.tokenized_path;
  return settings;
}

// Hugging Face drops what does not fill the last batch of an epoch.
data::SamplerOptions epoch_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed) {
  const bool sequential =
      sampler.disable_shuffling || sampler.train_sampling_strategy == config::SamplingStrategy::kSequential;
  return {.size = size,
          .shuffle = !sequential,
          .seed = seed,
          .end = data::EpochEnd::kDrop,
          .by_length = sampler.train_sampling_strategy == config::SamplingStrategy::kGroupByLength};
}

// Megatron's `single` stops at the end of the data, whose length the index has matched to the run; `cyclic` goes
// around.
data::SamplerOptions megatron_sampler(const config::SamplerConfig& sampler, int64_t size, uint64_t seed) {
  const bool cyclic = sampler.dataloader_type == config::DataloaderType::kCyclic;
  return {
      .size = size, .shuffle = cyclic, .seed = seed, .end = cyclic ? data::EpochEnd::kContinue : data::EpochEnd::kStop};
}

}  // namespace megalith::run
