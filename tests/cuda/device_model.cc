#include "tests/cuda/device_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "megalith/base/error.h"
#include "tests/cuda/device_sight.h"
#include "tests/parity/parity_point.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

constexpr int kSequences = 96;
constexpr double kSmallestMargin = 3e-5;  // between chosen experts and the next: far above rounding in fp32
constexpr const char* kWideLlama = "llama_wide";
constexpr const char* kWideExperts = "experts_wide";

// Sizes that tp 4 and pp 4 can split and that the kernels for 16-bit heads take.
ReferenceConfig device_config(const std::string& family) {
  ReferenceConfig config = parity_config(family == kWideLlama     ? "llama"
                                         : family == kWideExperts ? "qwen3_moe"
                                                                  : family);
  config.num_layers = 4;
  config.hidden_size = config.is_gpt2() ? 128 : 64;
  if (config.is_gpt2()) config.intermediate_size = 4 * config.hidden_size;
  if (!config.latent) config.head_dim = 16;
  if (!config.windows.empty()) config.windows.assign(4, 6);
  if (family == kWideLlama || family == kWideExperts) config.hidden_size = config.intermediate_size = 128;
  if (family == kWideExperts) {
    config.experts->width = 64;
    config.experts->topk = config.experts->count;  // the rounding of fp8 would change choices
  }
  return config;
}

// Gentle layers, so that rounding does not grow from layer to layer.
ReferenceModel gentle_model(const ReferenceConfig& config, uint64_t seed) {
  ReferenceModel model = ReferenceModel::random(config, seed);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters())
    if (parameter.dim() == 2) parameter.mul_(0.5);
  return model;
}

double smallest_margin(const ReferenceModel& model, const std::vector<data::Sequence>& samples) {
  const at::NoGradGuard no_grad;
  double margin = std::numeric_limits<double>::infinity();
  for (const data::Sequence& s : samples)
    margin = std::min(
        margin, model.forward(at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0)).router_margin);
  return margin;
}

// Rows without padding and with every label: the mean over a micro-batch weighs all samples alike.
void write_full_rows(const std::filesystem::path& path, int64_t vocab) {
  std::mt19937 random(7);
  std::ofstream file(path);
  for (int i = 0; i < kSequences; ++i) {
    json ids = json::array();
    for (int t = 0; t < kDeviceRow; ++t) ids.push_back(random() % static_cast<unsigned>(vocab));
    file << json{{"input_ids", std::move(ids)}}.dump() << "\n";
  }
}

// Each sample is the chosen answer, the one after it the rejected one.
void write_pairs(const std::filesystem::path& path, const std::vector<data::Sequence>& samples) {
  std::ofstream file(path);
  for (size_t i = 0; i < samples.size(); ++i) {
    const data::Sequence &chosen = samples[i], &rejected = samples[(i + 1) % samples.size()];
    file << json{{"chosen_input_ids", chosen.ids},
                 {"chosen_labels", chosen.labels},
                 {"rejected_input_ids", rejected.ids},
                 {"rejected_labels", rejected.labels}}
                .dump()
         << "\n";
  }
}

}  // namespace

void write_device_model(const std::string& family, const std::filesystem::path& folder) {
  at::set_num_threads(1);  // tiny products, and often a machine full of other tests
  if (sees(family)) return write_sight_model(family, folder);
  const ReferenceConfig config = device_config(family);
  const std::vector<data::Sequence> samples = random_sequences(kSequences, config.vocab_size, 5);
  uint64_t seed = 1;
  ReferenceModel model = gentle_model(config, seed);
  while (config.experts && smallest_margin(model, samples) < kSmallestMargin) {
    check(++seed < 50, "no model of {} routes all tokens clearly", family);
    model = gentle_model(config, seed);
  }
  model.save(folder);
  std::ofstream data(folder / "data.jsonl");
  for (const data::Sequence& s : samples) data << json{{"input_ids", s.ids}, {"labels", s.labels}}.dump() << "\n";
  write_full_rows(folder / "full.jsonl", config.vocab_size);
  write_pairs(folder / "pairs.jsonl", samples);
}

}  // namespace megalith::testing
