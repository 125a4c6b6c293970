// The data of a fine-tuning run, ready for a Trainer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/run/resolve/run_plan.h"
#include "megalith/train/training_data.h"

namespace megalith::run {

// Data that is open and ready to be read by a trainer.
struct RunData {
  std::optional<train::TrainingData> train;                    // nothing when only evaluation is asked for
  std::vector<train::EvalData> eval;                           // val_size, or eval_dataset (each, when asked)
  std::vector<std::pair<std::string, std::string>> described;  // "train", "1,024 samples"; for a summary
  std::vector<std::shared_ptr<const data::Dataset>> tables;    // samples of both that have numbers
  std::vector<std::string> reports;                            // how it came about, lines for a log
  int64_t left_out = 0;  // records and samples that the training data lacks; 0 for a stream, which does not know
};

// Compares the samples with the positions that the model was made for, if cutoff_len allows longer ones. Throws
// ConfigError if the model has a learned embedding for each position; otherwise returns a warning. Empty if all samples
// fit, or if their lengths are not known (streams).
std::string check_sample_lengths(const RunData& data, const DataPlan& plan, const model::ModelConfig& model);

// Reads, tokenizes (or finds in the cache) and describes. Every rank calls it with the same plan; no collective.
// One rank passes `shows_progress`.
RunData open_run_data(const DataPlan& plan, bool shows_progress = true);

}  // namespace megalith::run
