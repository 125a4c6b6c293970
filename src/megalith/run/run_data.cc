#include "megalith/run/run_data.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/data/sft/record_encoder.h"
#include "megalith/run/resolve/data_settings.h"

namespace megalith::run {

namespace {

data::Collator collator_of(const config::TrainingArguments& args, const data::DataRequest& request,
                           const data::CollateFunction& own) {
  data::CollatorOptions options =
      data::collator_options(request.data.kind, data::make_record_encoder(request)->pad_id());
  options.tp = args.parallel.sequence_parallel ? args.parallel.tp.value_or(1) : 1;
  options.cp = args.parallel.cp.value_or(1);
  return {options, own};
}

std::string samples_of(const data::Dataset& dataset) {
  return fmt::format("{} {}", dataset.size(), dataset.size() == 1 ? "sample" : "samples");
}

// Evaluation data of its own, all of it together or one set a name.
void add_eval_datasets(const data::DataRequest& request, const data::Collator& collator, RunData& result) {
  for (const auto& [name, of_name] : data::evaluation_requests(request)) {
    const auto loaded = data::load_tokenized_data(of_name);
    result.reports.push_back(loaded.report);
    result.eval.push_back({.dataset = loaded.train, .collator = collator, .name = name});
    result.described.emplace_back(name.empty() ? "evaluation" : "evaluation " + name, samples_of(*loaded.train));
  }
}

}  // namespace

data::DataRequest data_request(const config::TrainingArguments& args, const DataTools& tools) {
  data::DataRequest request;
  request.data = sft_settings(args);
  request.seed = config::data_seed(args);
  request.vocab_size = tools.vocab_size;
  request.cache_folder = tools.cache_folder;
  if (!tools.tokenizer_folder.empty()) {
    request.tokenizer = tokenizer::Tokenizer::from_folder(tools.tokenizer_folder);
    request.tokenizer_folder = tools.tokenizer_folder;
  }
  const auto encoder = data::make_record_encoder(request);
  for (const auto* names : {&args.data.dataset, &args.data.eval_dataset})
    for (const auto& dataset : data::find_datasets(*names, args.data.dataset_dir)) encoder->check_dataset(dataset);
  return request;
}

RunData open_run_data(const config::TrainingArguments& args, const DataTools& tools) {
  const data::DataRequest request = data_request(args, tools);
  const data::Collator collator = collator_of(args, request, tools.collate);
  RunData result;
  std::shared_ptr<const data::Dataset> validation;
  if (config::trains(args.run) && args.data.streaming) {
    const auto streams = data::open_streamed_data(request);
    result.train = train::streamed_data(streams.train, collator);
    validation = streams.validation;
    result.described.emplace_back("train", "a stream");
  } else if (config::trains(args.run) || args.data.eval_dataset.empty()) {
    const auto loaded = data::load_tokenized_data(request);
    result.reports.push_back(loaded.report);
    if (config::trains(args.run)) {
      result.train = train::numbered_data(
          loaded.train, epoch_sampler(args.sampler, loaded.train->size(), config::data_seed(args)), collator);
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
