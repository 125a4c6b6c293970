// TextSamples: what a run shows of itself in words: texts that the model writes, and samples that it was trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith::train {

// A text of the model with its weights of that step. Both parts are decoded with their special tokens.
struct GeneratedText {
  std::string prompt;
  std::string text;    // the continuation
  bool ended = false;  // the model ended it; false if it was cut off at its greatest length
};

// A stretch of a training sample, all of it in the loss or none of it.
struct TextSpan {
  std::string text;
  bool in_loss = false;
};

// A sequence as the model saw it: after templates, packing, truncation and masking.
struct TrainedSample {
  std::vector<TextSpan> spans;  // their texts together are the sample
  int64_t tokens = 0;           // without padding
  int64_t loss_tokens = 0;      // tokens that the model was trained to predict
  int64_t padding = 0;          // tokens that only fill the sequence
  int64_t left_out = 0;         // tokens at the end that `spans` do not show
};

struct TextSamples {
  std::vector<GeneratedText> generated;
  std::vector<TrainedSample> trained;
};

}  // namespace megalith::train
