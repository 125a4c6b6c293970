// Opens the data of a fine-tuning run: samples to train on (a table or a stream), samples held out of them, and
// separate evaluation sets.
#include "megalith/run/run_data.h"

#include <fmt/format.h>

namespace megalith::run {

namespace {

// Returns "1 sample" or "N samples".
std::string samples_of(const data::Dataset& dataset) {
  return fmt::format("{} {}", dataset.size(), dataset.size() == 1 ? "sample" : "samples");
}

// Adds separate evaluation data: all of it together, or one set per name.
void add_eval_datasets(const data::DataRequest& request, const data::Collator& collator, RunData& result) {
  for (const auto& [name, of_name] : data::evaluation_requests(request)) {
    const auto loaded = data::load_tokenized_data(of_name);
    result.reports.push_back(loaded.report);
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

}  // namespace

RunData open_run_data(const DataPlan& plan) {
  const data::DataRequest& request = plan.request;
  const data::Collator collator(plan.collator, plan.collate);
  RunData result;
  std::shared_ptr<const data::Dataset> validation;
  if (plan.trains && plan.streams) {
    const auto streams = data::open_streamed_data(request);
    result.train = train::streamed_data(streams.train, collator);
    validation = streams.validation;
    result.described.emplace_back("train", "a stream");
    // An evaluation alone reads the training data only if val_size holds samples out of it.
  } else if (plan.trains || request.data.eval_dataset.empty()) {
    const auto loaded = data::load_tokenized_data(request);
    result.reports.push_back(loaded.report);
    if (plan.trains) {
      result.train = in_order(plan, loaded.train, collator);
      result.described.emplace_back("train", samples_of(*loaded.train));
    }
    validation = loaded.validation;
  }
  if (validation) {
    result.eval.push_back({.dataset = validation, .collator = collator});
    result.described.emplace_back("held out", samples_of(*validation));
  }
  add_eval_datasets(request, collator, result);
  return result;
}

}  // namespace megalith::run
