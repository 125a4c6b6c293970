// How generation chooses the next token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <vector>

namespace megalith::inference {

// How to choose the next token, and when a text ends.
struct SamplingOptions {
  double temperature = 0;  // 0 = always the most likely token
  int64_t top_k = 0;       // only the k most likely tokens; 0 = all
  double top_p = 1;        // only the most likely tokens that together have this probability
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // tokens that end the text; the one that did is the last one returned
  uint64_t seed = 42;             // the same seed gives the same texts, in every layout
  // Throws a ConfigError that lists every problem.
  void validate() const;
};

// Draws an id from logits fp32 [v] on the host, like HF's sampler: temperature, then top-k, then top-p.
int64_t sample(const at::Tensor& logits, const SamplingOptions& options, std::mt19937_64& random);

// Returns the random numbers of a text; `draw` is its number among those drawn with one seed, so that equal prompts get
// different texts.
std::mt19937_64 random_numbers(const SamplingOptions& options, uint64_t draw);

}  // namespace megalith::inference
