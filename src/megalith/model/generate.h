// Text generation with a key/value cache: one sequence at a time, any tensor-parallel size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "megalith/model/virtual_models.h"

namespace megalith::model {

struct SamplingOptions {
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // only the k likeliest tokens; 0: all
  double top_p = 1;        // only the likeliest tokens that together have this probability
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_ids;  // a token that ends the text; it is the last one returned
  uint64_t seed = 42;
  // Throws ConfigError with every problem.
  void validate() const;
};

// Draws one of the ids by logits fp32 [v] on the host, as HF's sampler: temperature, then top-k, then top-p.
int64_t sample(const at::Tensor& logits, const SamplingOptions& options, std::mt19937_64& random);

// Called for each new token as soon as it is known; false ends the text.
using OnToken = std::function<bool(int64_t id)>;

// Continues `prompt` (at least one id). Every rank of the model calls it with the same arguments and gets the same ids:
// all draw from the same random numbers and the same logits. Throws ConfigError when the model is spread over pipeline
// stages, holds split tokens, or the text would not fit its learned positions.
std::vector<int64_t> generate(const VirtualModels& models, const std::vector<int64_t>& prompt,
                              const SamplingOptions& options, const OnToken& on_token = {});

}  // namespace megalith::model
