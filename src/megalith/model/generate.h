// Text generation with a key/value cache: one sequence at a time, any tensor-parallel size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "megalith/model/virtual_models.h"

namespace megalith::model {

// How to choose the next token.
struct SamplingOptions {
  double temperature = 0;  // 0 = always the most likely token
  int64_t top_k = 0;       // only the k most likely tokens; 0 = all
  double top_p = 1;        // only the most likely tokens that together have this probability
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // tokens that end the text; the one that did is the last one returned
  // The same seed gives the same text, for every tensor-parallel size.
  uint64_t seed = 42;
  uint64_t draw = 0;  // number of the text among those drawn with one seed: equal prompts get different texts
  // Throws a ConfigError that lists every problem.
  void validate() const;
};

// Draws an id from logits fp32 [v] on the host, like HF's sampler: temperature, then top-k, then top-p.
int64_t sample(const at::Tensor& logits, const SamplingOptions& options, std::mt19937_64& random);

// Called with each new token as soon as it is known; returning false ends the text.
using OnToken = std::function<bool(int64_t id)>;

// Continues `prompt` (at least one id) and returns the new ids. Every rank of the model calls it with the same
// arguments and gets the same ids, because all use the same random numbers and logits. Throws ConfigError if the model
// is split over pipeline stages or along tokens, or if the text would exceed its learned positions.
std::vector<int64_t> generate(const VirtualModels& models, const std::vector<int64_t>& prompt,
                              const SamplingOptions& options, const OnToken& on_token = {});

}  // namespace megalith::model
