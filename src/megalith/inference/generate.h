// Text generation with a key/value cache, in every layout. Replicas share the texts; each stage of a pipeline keeps the
// keys and values of its own layers, and as many texts are in flight as there are stages.
//
//   stage 0   text 0   text 1   text 0   text 1      a pass takes one token per text (the whole prompt at first);
//   stage 1            text 0   text 1   text 0 …    the last stage draws the next one and tells all stages
//
// Images belong to the prompt: the vision tower runs in the first pass, and the positions of new tokens continue after
// the largest coordinate of the prompt.
//
// Context-parallel ranks, between which a single token cannot be split, repeat the same work. With sequence parallelism
// every pass takes the whole text again: fine for a few texts of a run that trains; a program that only generates turns
// it off, which does not change how weights are split.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megalith/inference/media_batch.h"
#include "megalith/inference/sampling.h"
#include "megalith/model/virtual_models.h"

namespace megalith::inference {

// A text to write.
struct TextRequest {
  std::vector<int64_t> prompt;  // at least one id
  uint64_t draw = 0;            // see random_numbers
  MediaInput media = {};        // images and videos that placeholders in the prompt stand for
};

// Receives texts on rank 0, in the order of the requests. Each function may be empty.
struct TextReader {
  // Called with each new token. Those of the text that is next in order come as soon as they are known, the others when
  // the texts before theirs have ended.
  std::function<void(size_t text, int64_t id)> on_token;
  std::function<void(size_t text)> on_end;  // the text has no more tokens
  // Called after each pass with the tokens written so far by all replicas, and the most that there can be. A text that
  // has ended counts with all tokens that it could have had.
  std::function<void(int64_t done, int64_t most)> on_progress;
};

// Continues all prompts and returns the new ids, equal on all ranks and in every layout. All ranks call it with the
// same requests. Throws ConfigError if the model cannot predict tokens, or if a text would exceed its learned
// positions; DataError for ids that are not in the vocabulary; and like place_media.
std::vector<std::vector<int64_t>> generate_texts(const model::VirtualModels& models,
                                                 std::span<const TextRequest> requests, const SamplingOptions& options,
                                                 const TextReader& reader = {});

// Throws ConfigError for a model that scores sequences, which has no next token.
void check_predicts(const model::ModelConfig& config);

// Called with each new token as soon as it is known; returning false ends the text.
using OnToken = std::function<bool(int64_t id)>;

// Continues one prompt, which every replica does by itself. Every rank calls it with the same arguments, gets the same
// ids, and calls `on_token`, which gives the same answer everywhere. Throws like generate_texts.
std::vector<int64_t> generate(const model::VirtualModels& models, const std::vector<int64_t>& prompt,
                              const SamplingOptions& options, const OnToken& on_token = {});

}  // namespace megalith::inference
