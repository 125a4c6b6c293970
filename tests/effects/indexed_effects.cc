// Pre-training data in .bin/.idx files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/run/resolve/indexed_settings.h"
#include "tests/data/data_support.h"
#include "tests/effects/effect.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

// Two pairs of files, and files that name them.
class Files {
 public:
  Files() {
    const std::vector<int> lengths(10, 9);
    for (const char* name : {"a", "b"})
      data::write_pair(path(name), data::TokenType::kUint16, data::counting_documents(lengths));
    std::ofstream(path("words.txt")) << path("b");
    std::ofstream(path("splits.json")) << fmt::format(R"({{"train": ["{0}"], "valid": ["{1}"], "test": ["{1}"]}})",
                                                      path("a"), path("b"));
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  TempFolder folder_;
};

const Files& indexed_files() {
  static const Files all;
  return all;
}

std::string indexed_text(const std::optional<data::Blend>& blend) {
  return blend ? fmt::format("{} by {}", blend->prefixes, blend->weights.value_or(std::vector<double>{})) : "none";
}

std::string sources(const TrainingArguments& args) {
  const data::DataSources found = run::data_sources(args.indexed);
  std::string text = fmt::format("all {} mock {}", indexed_text(found.all), found.mock);
  for (const auto& blend : found.by_split) text += " " + indexed_text(blend);
  return text;
}

std::string indexed_text(const std::shared_ptr<const data::PretrainDataset>& dataset) {
  if (!dataset) return "none\n";
  const data::PretrainSample sample = dataset->sample(0);
  return fmt::format("{} samples: {} loss {} positions {} parts {}\n", dataset->size(), sample.tokens, sample.loss_mask,
                     sample.position_ids, sample.cumulative_lengths);
}

std::string samples(const TrainingArguments& args) {
  const data::PretrainDatasets datasets = data::make_pretrain_datasets({.data = run::indexed_settings(args.indexed),
                                                                        .seq_length = 12,
                                                                        .samples = {2, 1, 0},
                                                                        .tokens = {.vocab_size = 10, .eod_id = 0}});
  const auto& cache = args.indexed.data_cache_path;
  return fmt::format("{}{}{}cache {}", indexed_text(datasets.train), indexed_text(datasets.valid),
                     indexed_text(datasets.test), cache && !std::filesystem::is_empty(*cache));
}

}  // namespace

Effects indexed_effects() {
  const std::string a = indexed_files().path("a"), b = indexed_files().path("b");
  const Words one{"--data_path=" + a, "--split=8,2,0"};
  return {
      {"data_path", {}, {"--data_path=" + a}, {"--data_path=" + b}, sources, Dialect::kPretrain},
      {"train_data_path", {}, {"--train_data_path=" + a}, {"--train_data_path=" + b}, sources, Dialect::kPretrain},
      {"valid_data_path", {"--train_data_path=" + a}, {}, {"--valid_data_path=" + b}, sources, Dialect::kPretrain},
      {"test_data_path", {"--train_data_path=" + a}, {}, {"--test_data_path=" + b}, sources, Dialect::kPretrain},
      {"data_args_path",
       {},
       {"--data_path=" + a},
       {"--data_args_path=" + indexed_files().path("words.txt")},
       sources,
       Dialect::kPretrain},
      {"per_split_data_args_path",
       {},
       {"--data_path=" + a},
       {"--per_split_data_args_path=" + indexed_files().path("splits.json")},
       sources,
       Dialect::kPretrain},
      {"mock_data", {}, {"--data_path=" + a}, {"--mock_data"}, sources, Dialect::kPretrain},
      {"split", {"--data_path=" + a}, {"--split=8,2,0"}, {"--split=5,5,0"}, samples, Dialect::kPretrain},
      {"data_cache_path", one, {}, {"--data_cache_path=" + indexed_files().path("cache")}, samples, Dialect::kPretrain},
      {"eod_mask_loss", one, {}, {"--eod_mask_loss"}, samples, Dialect::kPretrain},
      {"reset_position_ids", one, {}, {"--reset_position_ids"}, samples, Dialect::kPretrain},
      {"reset_attention_mask", one, {}, {"--reset_attention_mask"}, samples, Dialect::kPretrain},
  };
}

}  // namespace megalith::testing
