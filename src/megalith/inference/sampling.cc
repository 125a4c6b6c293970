// Temperature, top-k and top-p on the host. Candidates are sorted deterministically, so that every rank with the same
// logits and random numbers draws the same id.
#include "megalith/inference/sampling.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::inference {

namespace {

// The ids that may be drawn, most likely first, with unnormalized probabilities.
struct Candidates {
  std::vector<int64_t> ids;
  std::vector<double> weights;
};

// Temperature, top-k and top-p of HF's warpers in one pass over sorted ids. A partial sort suffices for top-k: it costs
// v·log(k) instead of v·log(v) comparisons. Weights stay unnormalized; sample() divides by their sum implicitly.
Candidates candidates(const at::Tensor& logits, const SamplingOptions& options) {
  const int64_t vocab = logits.size(0);
  const auto* values = logits.const_data_ptr<float>();
  Candidates result;
  result.ids.resize(static_cast<size_t>(vocab));
  std::iota(result.ids.begin(), result.ids.end(), 0);
  // Equal logits are ordered by id, so that every rank and every run sees the same list.
  const auto likelier = [values](int64_t a, int64_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, vocab) : vocab;
  std::partial_sort(result.ids.begin(), result.ids.begin() + kept, result.ids.end(), likelier);
  result.ids.resize(static_cast<size_t>(kept));
  double total = 0;
  for (const int64_t id : result.ids) {
    // Relative to the largest logit, so that exp cannot overflow.
    result.weights.push_back(std::exp((values[id] - values[result.ids[0]]) / options.temperature));
    total += result.weights.back();
  }
  double sum = 0;
  for (size_t i = 0; i < result.ids.size(); ++i) {
    sum += result.weights[i];
    if (sum < options.top_p * total) continue;
    result.ids.resize(i + 1);  // the one that reaches top_p is the last
    result.weights.resize(i + 1);
    break;
  }
  return result;
}

}  // namespace

void SamplingOptions::validate() const {
  std::vector<std::string> found;
  const auto need = [&found](bool ok, std::string message) {
    if (!ok) found.push_back(std::move(message));
  };
  need(temperature >= 0 && std::isfinite(temperature),
       fmt::format("temperature is {}; it must be 0 (greedy) or a positive number", temperature));
  need(top_k >= 0, fmt::format("top_k is {}; it must be 0 (all) or positive", top_k));
  need(top_p > 0 && top_p <= 1, fmt::format("top_p is {}; it must be in (0, 1]", top_p));
  need(max_new_tokens > 0, fmt::format("max_new_tokens is {}; it must be positive", max_new_tokens));
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
}

int64_t sample(const at::Tensor& logits, const SamplingOptions& options, std::mt19937_64& random) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  // Draws from the cumulative distribution: subtracts weights from a uniform number until it becomes negative. The last
  // candidate is returned if rounding leaves a remainder.
  const Candidates from = candidates(logits.contiguous(), options);
  const double total = std::accumulate(from.weights.begin(), from.weights.end(), 0.0);
  // 53 random bits as a double in [0, 1): std::uniform_real_distribution differs between standard libraries.
  double left = static_cast<double>(random() >> 11) * 0x1.0p-53 * total;
  for (size_t i = 0; i < from.ids.size(); ++i) {
    left -= from.weights[i];
    if (left < 0) return from.ids[i];
  }
  return from.ids.back();
}

// The first text of a seed has the seed itself, so that a single prompt gives the same text in every version.
std::mt19937_64 random_numbers(const SamplingOptions& options, uint64_t draw) {
  if (draw == 0) return std::mt19937_64(options.seed);
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  std::seed_seq words{low(options.seed), low(options.seed >> 32), low(draw), low(draw >> 32)};
  return std::mt19937_64(words);
}

}  // namespace megalith::inference
