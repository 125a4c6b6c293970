// The data of a fine-tuning run, ready for a Trainer.
#pragma once

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
  std::vector<std::string> reports;                            // how it came about, lines for a log
};

// Reads, tokenizes (or finds in the cache) and describes. Every rank calls it with the same plan; no collective.
RunData open_run_data(const DataPlan& plan);

}  // namespace megalith::run
