// Generation: the first pass takes the whole prompt, each later pass one token; the KvCache supplies the rest. Every
// rank gathers the logits and samples by itself. All arrive at the same token without a broadcast, because the
// candidates are sorted deterministically and the random numbers are the same everywhere.
#include "megalith/model/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::model {

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

// Returns the random numbers of a text. The first one of a seed has the seed itself, so that a single prompt gives the
// same text in every version.
std::mt19937_64 random_of(const SamplingOptions& options) {
  if (options.draw == 0) return std::mt19937_64(options.seed);
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  std::seed_seq words{low(options.seed), low(options.seed >> 32), low(options.draw), low(options.draw >> 32)};
  return std::mt19937_64(words);
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

std::vector<int64_t> generate(const VirtualModels& models, const std::vector<int64_t>& prompt,
                              const SamplingOptions& options, const OnToken& on_token) {
  options.validate();
  check<ConfigError>(!prompt.empty(), "the prompt is empty; give at least one token (bos)");
  for (const int64_t id : prompt)
    check<DataError>(
        id >= 0 && id < models.config().vocab_size,
        "the prompt has the token id {}, which is outside of the model's vocabulary of {}: the tokenizer has"
        " tokens for which the model has no rows. Train it with resize_vocab first",
        id, models.config().vocab_size);
  const GptModel& model = models[0];
  check<ConfigError>(models.size() == 1 && model.place().embedding && model.place().head,
                     "generation runs on whole models; use pipeline_model_parallel_size 1 and split by"
                     " tensor_model_parallel_size");
  check<ConfigError>(model.head()->predicts_tokens(),
                     "the head of {} models does not predict tokens, so they"
                     " cannot generate text",
                     models.config().family);
  check<ConfigError>(!model.options().sequence_parallel,
                     "generation takes one token at a time, which cannot be split;"
                     " turn off sequence_parallel");
  const auto length = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  check<ConfigError>(!models.config().learned_positions || length <= models.config().max_positions,
                     "{} prompt tokens and max_new_tokens {} exceed the {} positions of the model; use fewer",
                     prompt.size(), options.max_new_tokens, models.config().max_positions);
  const at::NoGradGuard no_grad;
  // Every check above gives the same answer on all ranks, so either all of them throw or all reach the collectives.
  const comm::Group tp = models.context().tp();
  std::mt19937_64 random = random_of(options);
  nn::KvCache cache(models.config().num_layers);
  // `next` is the input of the coming pass: the prompt at first, then the newest token alone.
  std::vector<int64_t> next = prompt, generated;
  while (static_cast<int64_t>(generated.size()) < options.max_new_tokens) {
    const auto count = static_cast<int64_t>(next.size());
    const at::Tensor ids = at::tensor(next, at::kLong).to(model.options().device);
    // Positions continue after the cached tokens.
    const at::Tensor positions = at::arange(cache.tokens(), cache.tokens() + count, at::kLong);
    const ModelInput input{.layout = ops::SequenceLayout::dense(1, count).with_positions(positions),
                           .ids = ids,
                           .cache = &cache,
                           .training = false,
                           .last_token_only = true};
    const at::Tensor columns = model.forward(input).to(at::kFloat);  // [1, v/tp]
    // [1, v] in fp32, without the padding of the vocabulary, whose logits must not be drawn.
    const at::Tensor logits = nn::all_gather_columns(columns, tp, "logits").narrow(1, 0, model.vocab().size);
    generated.push_back(sample(logits[0].to(at::kCPU), options, random));
    next = {generated.back()};
    // Both ends depend on the token alone, so all ranks leave the loop together.
    if (on_token && !on_token(generated.back())) break;
    if (std::ranges::find(options.stop_ids, generated.back()) != options.stop_ids.end()) break;
  }
  return generated;
}

}  // namespace megalith::model
