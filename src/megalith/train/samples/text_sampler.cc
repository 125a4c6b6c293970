// Prompts are taken from labels: the tokens before the first one in the loss are what the model is given, those after
// it are what it should write. Labels of a micro-batch are shifted, and those of a dataset may be; both are read here
// as "token j is in the loss".
#include "megalith/train/samples/text_sampler.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/inference/generate.h"
#include "megalith/inference/stage_passes.h"

namespace megalith::train {

namespace {

constexpr size_t kTrainedShown = 2;        // training samples per step
constexpr size_t kMostTokensShown = 1024;  // tokens of a training sample
constexpr size_t kBeginning = 16;          // tokens of a prompt from a text that is in the loss as a whole

std::vector<int32_t> narrow_ids(std::span<const int64_t> ids) { return {ids.begin(), ids.end()}; }

// Returns the index of the first token that is in the loss; the number of tokens if there is none. The first token is
// never predicted.
size_t first_in_loss(const data::Sequence& row, size_t size) {
  for (size_t token = 1; token < size; ++token)
    if (row.labels[row.shifted ? token - 1 : token] != data::kIgnoredLabel) return token;
  return size;
}

// The tokens of a sequence, with the last label, and which of them are in the loss.
struct SeenTokens {
  std::vector<int32_t> ids;
  std::vector<bool> in_loss;
  int64_t padding = 0;
};

// Reads tokens [begin, end) of a micro-batch. In a micro-batch with padding, the same unlabeled token again and again
// at the end of a sequence is that. The last token of a sample is only a label.
SeenTokens seen_tokens(const data::MicroBatch& batch, int64_t begin, int64_t end) {
  const at::Tensor all_ids = batch.ids.contiguous(), all_labels = batch.labels.contiguous();
  const auto *ids = all_ids.const_data_ptr<int64_t>(), *labels = all_labels.const_data_ptr<int64_t>();
  SeenTokens seen;
  int64_t last = end - 1;
  if (batch.real_tokens < batch.tokens())
    while (last > begin && labels[last] == data::kIgnoredLabel && ids[last] == ids[end - 1]) --last;
  seen.padding = end - 1 - last;
  for (int64_t i = begin; i <= last; ++i) {
    seen.ids.push_back(static_cast<int32_t>(ids[i]));
    seen.in_loss.push_back(i > begin && labels[i - 1] != data::kIgnoredLabel);
  }
  if (labels[last] != data::kIgnoredLabel) {
    seen.ids.push_back(static_cast<int32_t>(labels[last]));
    seen.in_loss.push_back(true);
  }
  return seen;
}

// A character of several tokens belongs to the span of its last one.
TrainedSample decoded(const SeenTokens& seen, const tokenizer::Tokenizer& tokenizer) {
  const size_t shown = std::min(seen.ids.size(), kMostTokensShown);
  TrainedSample sample{.tokens = static_cast<int64_t>(seen.ids.size()),
                       .loss_tokens = std::ranges::count(seen.in_loss, true),
                       .padding = seen.padding,
                       .left_out = static_cast<int64_t>(seen.ids.size() - shown)};
  const auto add = [&](const std::string& text, bool in_loss) {
    if (text.empty()) return;
    if (sample.spans.empty() || sample.spans.back().in_loss != in_loss) sample.spans.push_back({"", in_loss});
    sample.spans.back().text += text;
  };
  tokenizer::Tokenizer::StreamDecoder stream(tokenizer);
  for (size_t i = 0; i < shown; ++i) add(stream.push(seen.ids[i]), seen.in_loss[i]);
  add(stream.finish(), shown > 0 && seen.in_loss[shown - 1]);
  return sample;
}

}  // namespace

std::vector<Prompt> prompts_from(const data::Dataset& dataset, size_t count) {
  constexpr int64_t kMostLookedAt = 100;
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < std::min(dataset.size(), kMostLookedAt) && prompts.size() < count; ++i) {
    const data::Sequence row = dataset.sample(i).row;
    // A packed row begins with its first sample.
    const size_t size = row.pieces.empty() ? row.ids.size() : static_cast<size_t>(row.pieces.front());
    if (size < 2 || !row.media.empty()) continue;
    size_t length = first_in_loss(row, size);
    if (length == 1 || length == size) length = std::min(kBeginning, size / 2);
    prompts.emplace_back(row.ids.begin(), row.ids.begin() + static_cast<std::ptrdiff_t>(length));
  }
  return prompts;
}

std::vector<TrainedSample> trained_samples(const data::MicroBatch& batch, const tokenizer::Tokenizer& tokenizer) {
  const std::vector<int64_t>& bounds = batch.layout.cumulative();
  const auto sequences = static_cast<size_t>(batch.sequences);
  std::vector<size_t> numbers;
  if (batch.preference)
    numbers = {0, sequences / 2};
  else
    for (size_t i = 0; i < std::min(sequences, kTrainedShown); ++i) numbers.push_back(i);
  std::vector<TrainedSample> samples;
  for (const size_t number : numbers)
    samples.push_back(decoded(seen_tokens(batch, bounds.at(number), bounds.at(number + 1)), tokenizer));
  return samples;
}

TextSampler::TextSampler(const Settings& settings, tokenizer::Tokenizer tokenizer, std::vector<Prompt> prompts)
    : settings_(settings), tokenizer_(std::move(tokenizer)), prompts_([&] {
        for (Prompt& prompt : prompts)
          if (prompt.size() > kMostPromptTokens)
            prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(kMostPromptTokens));
        return std::move(prompts);
      }()) {}

// Predicting tokens is asked last: it is the only collective, and the other checks give the same answer on all ranks.
void TextSampler::check(const model::VirtualModels& models) const {
  const model::ModelConfig& config = models.config();
  for (const Prompt& prompt : prompts_) {
    inference::check_token_ids(at::tensor(prompt, at::kLong), config);
    const int64_t length = static_cast<int64_t>(prompt.size()) + settings_.max_new_tokens;
    megalith::check<ConfigError>(
        !config.learned_positions || length <= config.max_positions,
        "generate_samples_max_new_tokens {} after a prompt of {} tokens exceeds the {} positions of the model; use "
        "fewer tokens, or shorter prompts (generate_samples_prompts)",
        settings_.max_new_tokens, prompt.size(), config.max_positions);
  }
  megalith::check<ConfigError>(inference::predicts_tokens(models),
                               "generate_samples_every has the model write text, but the head of {} models does not "
                               "predict tokens; leave it out",
                               config.family);
}

TextSamples TextSampler::take(const model::VirtualModels& models, const data::StepBatch& batch) const {
  inference::SamplingOptions options{.max_new_tokens = settings_.max_new_tokens};
  options.stop_ids.assign(tokenizer_.stop_ids().begin(), tokenizer_.stop_ids().end());
  std::vector<inference::TextRequest> requests;
  for (const Prompt& prompt : prompts_) requests.push_back({prompt, requests.size()});
  const std::vector<std::vector<int64_t>> texts = inference::generate_texts(models, requests, options);
  TextSamples samples;
  if (models.context().rank() != 0) return samples;
  for (size_t i = 0; i < texts.size(); ++i)
    samples.generated.push_back(
        {.prompt = tokenizer_.decode(narrow_ids(prompts_[i])),
         .text = tokenizer_.decode(narrow_ids(texts[i])),
         .ended = !texts[i].empty() && std::ranges::find(options.stop_ids, texts[i].back()) != options.stop_ids.end()});
  if (!batch.microbatches.empty() && batch.microbatches.front().ids.defined())
    samples.trained = trained_samples(batch.microbatches.front(), tokenizer_);
  return samples;
}

}  // namespace megalith::train
