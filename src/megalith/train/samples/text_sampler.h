// TextSampler: lets a model write texts while it is trained, and decodes samples of its training data
// (generate_samples_every).
//
//   TextSampler sampler({.every = 100, .max_new_tokens = 64}, tokenizer, prompts);
//   if (sampler.due(step)) samples = sampler.take(models, batch);
//
// Texts are greedy continuations of the same prompts each time, so that they differ because of the weights alone. No
// random stream of the run is used, and dropout is off: a run computes the same numbers with and without it.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/data/batch_loader.h"
#include "megalith/data/dataset.h"
#include "megalith/model/virtual_models.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/train/samples/text_samples.h"

namespace megalith::train {

// Token ids to continue; at least one.
using Prompt = std::vector<int64_t>;

// Returns the beginnings of up to `count` samples: up to the first token of the loss (the question of a dialog), or the
// first tokens of a text that is trained on as a whole. Empty samples and those with images are
// passed over.
std::vector<Prompt> prompts_from(const data::Dataset& dataset, size_t count);

// Returns the first sequences of a micro-batch as texts. For preference pairs: the chosen and the rejected answer of
// the first one. `batch` has ids and labels, and is not cut for context-parallel ranks.
std::vector<TrainedSample> trained_samples(const data::MicroBatch& batch, const tokenizer::Tokenizer& tokenizer);

// Immutable. The same on every rank of a run.
class TextSampler {
 public:
  struct Settings {
    int64_t every = 1;  // steps between samples
    int64_t max_new_tokens = 64;
  };
  // Prompts of more than kMostPromptTokens tokens lose their beginning.
  TextSampler(const Settings& settings, tokenizer::Tokenizer tokenizer, std::vector<Prompt> prompts);

  bool due(int64_t step) const { return step % settings_.every == 0; }

  // Throws ConfigError or DataError if `models` cannot continue the prompts: its head does not predict tokens, it has
  // too few positions, or its vocabulary is another one. Collective over all ranks.
  void check(const model::VirtualModels& models) const;

  // Returns the samples on rank 0, nothing elsewhere. `batch` is the step that was just trained on. The parameters must
  // have been gathered. Collective over all ranks.
  TextSamples take(const model::VirtualModels& models, const data::StepBatch& batch) const;

  static constexpr size_t kMostPromptTokens = 512;

 private:
  const Settings settings_;
  const tokenizer::Tokenizer tokenizer_;
  const std::vector<Prompt> prompts_;
};

}  // namespace megalith::train
