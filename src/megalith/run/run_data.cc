// Opens the data of a fine-tuning run: samples to train on (a table or a stream), samples held out of them, and
// separate evaluation sets.
#include "megalith/run/run_data.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::run {

namespace {

// Returns "1 sample" or "N samples".
std::string samples_of(const data::Dataset& dataset) {
  return fmt::format("{} {}", dataset.size(), dataset.size() == 1 ? "sample" : "samples");
}

// Adds separate evaluation data: all of it together, or one set per name.
void add_eval_datasets(const data::DataRequest& request, const data::Collator& collator, bool shows_progress,
                       RunData& result) {
  for (const auto& [name, of_name] : data::evaluation_requests(request)) {
    const auto loaded = data::load_tokenized_data(of_name, shows_progress);
    result.reports.push_back(loaded.report);
    result.tables.push_back(loaded.train);
    result.eval.push_back({.dataset = loaded.train, .collator = collator, .name = name});
    result.described.emplace_back(name.empty() ? "evaluation" : "evaluation " + name, samples_of(*loaded.train));
  }
}

// The plan knows the order but not the size, which tokenizing has just determined.
train::TrainingData in_order(const DataPlan& plan, const std::shared_ptr<const data::Dataset>& dataset,
                             const data::Collator& collator) {
  data::SamplerOptions order = plan.order;
  order.size = dataset->size();
  return train::numbered_data(dataset, order, collator);
}

// Returns the positions of a row: samples that are packed into it begin at 0 again, and the last id is only a label.
int64_t positions_of(const data::Sequence& row) {
  const int64_t longest = row.pieces.empty() ? std::ssize(row.ids) : *std::ranges::max_element(row.pieces);
  return row.shifted ? longest : longest - 1;
}

// Reads only samples that may need more than `fitting` positions.
int64_t most_positions(const data::Dataset& table, int64_t fitting) {
  int64_t most = 0;
  for (int64_t i = 0; i < table.size(); ++i) {
    if (table.tokens(i) <= fitting) continue;
    const data::Sample sample = table.sample(i);
    most = std::max(most, positions_of(sample.row));
    if (sample.second() != nullptr) most = std::max(most, positions_of(*sample.second()));
  }
  return most;
}

// Images are decoded by as many threads as the rank computes with; more than a few only wait for memory.
data::CollatorOptions on_this_rank(data::CollatorOptions options) {
  constexpr int kMostThreads = 8;
  options.media_threads = std::clamp(at::get_num_threads(), 1, kMostThreads);
  return options;
}

}  // namespace

std::string check_sample_lengths(const RunData& data, const DataPlan& plan, const model::ModelConfig& model) {
  const int64_t positions = model.max_positions;
  if (positions == 0 || plan.request.data.cutoff_len <= positions) return {};
  int64_t most = 0;
  for (const auto& table : data.tables) most = std::max(most, most_positions(*table, positions));
  if (most <= positions) return {};
  const std::string found = fmt::format(
      "the longest sample has {} tokens, and the model has {} positions (max_position_embeddings)", most, positions);
  check<ConfigError>(!model.learned_positions, "{}, each with a learned embedding; set cutoff_len {}", found,
                     positions);
  return fmt::format(
      "{}: what comes later is new to it. Set cutoff_len {}, or give config.json rope scaling and more positions if it "
      "is"
      " to learn longer texts",
      found, positions);
}

RunData open_run_data(const DataPlan& plan, bool shows_progress) {
  const data::DataRequest& request = plan.request;
  const data::Collator collator(on_this_rank(plan.collator), plan.collate);
  RunData result;
  std::shared_ptr<const data::Dataset> validation;
  if (plan.trains && plan.streams) {
    const auto streams = data::open_streamed_data(request);
    result.train = train::streamed_data(streams.train, collator);
    validation = streams.validation;
    result.described.emplace_back("train", "a stream");
    // An evaluation alone reads the training data only if val_size holds samples out of it.
  } else if (plan.trains || request.data.eval_dataset.empty()) {
    const auto loaded = data::load_tokenized_data(request, shows_progress);
    result.reports.push_back(loaded.report);
    if (plan.trains) {
      result.tables.push_back(loaded.train);
      result.left_out = loaded.left_out;
      result.train = in_order(plan, loaded.train, collator);
      result.described.emplace_back("train", samples_of(*loaded.train));
    }
    validation = loaded.validation;
  }
  if (validation) {
    result.tables.push_back(validation);
    result.eval.push_back({.dataset = validation, .collator = collator});
    result.described.emplace_back("held out", samples_of(*validation));
  }
  add_eval_datasets(request, collator, shows_progress, result);
  return result;
}

}  // namespace megalith::run
