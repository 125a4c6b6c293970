// TrainerState: where a run stands, in the fields of Hugging Face's trainer_state.json, which is also what it is saved
// as.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megalith/train/report/metric_list.h"

namespace megalith::train {

// What a callback wants to find again after a resume (HF's ExportableState).
struct CallbackRecord {
  std::string name;       // of the callback's kind: "EarlyStoppingCallback"
  MetricList args;        // what it was made with
  MetricList attributes;  // what it has counted since
  bool operator==(const CallbackRecord&) const = default;
};

struct TrainerState {
  std::optional<double> epoch;  // passes over the data, with a fraction; empty before the first step
  int64_t global_step = 0;      // optimizer steps done
  int64_t max_steps = 0;        // at which the run ends
  // Intervals in steps: the options, with fractions of max_steps resolved (resolve_intervals in flow_callback.h).
  int64_t logging_steps = 500;
  int64_t eval_steps = 500;
  int64_t save_steps = 500;
  std::optional<int64_t> train_batch_size;  // samples in a micro-batch
  int64_t num_train_epochs = 0;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;                // floating-point operations of the model so far, all ranks
  std::vector<MetricList> log_history;  // each with "epoch" and "step"
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;  // folder
  std::vector<CallbackRecord> stateful_callbacks;
  std::string rerun_state;  // JSON of results that the next step computes again (RerunExit::Facts::state); empty: none
  // This process; neither is a fact about the run, but HF's file has them.
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;
  bool operator==(const TrainerState&) const = default;

  // The record of that name, or nothing.
  const CallbackRecord* find_callback(const std::string& name) const;
  // Replaces the record of the same name, or appends.
  void keep_callback(CallbackRecord record);

  // Keys as in HF's file, sorted as there, in the lines of the history too.
  nlohmann::ordered_json to_json() const;
  // Fields that are absent keep their defaults, those that Megalith does not know are ignored. Throws DataError naming
  // `file_name` and the field for values of the wrong type or below 0.
  static TrainerState from_json(nlohmann::ordered_json object, const std::string& file_name);

  // The file is there complete or as it was before. Throws DataError.
  void save(const std::filesystem::path& file) const;
  static TrainerState load(const std::filesystem::path& file);
};

}  // namespace megalith::train
