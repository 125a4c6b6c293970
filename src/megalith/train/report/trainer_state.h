// TrainerState: the progress of a run in the fields of Hugging Face's trainer_state.json, which is also how it is
// saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megalith/train/report/metric_list.h"

namespace megalith::train {

// The state that a callback needs after a resume (HF's ExportableState).
struct CallbackRecord {
  std::string name;       // kind of the callback: "EarlyStoppingCallback"
  MetricList args;        // the parameters of its constructor
  MetricList attributes;  // its counters
  bool operator==(const CallbackRecord&) const = default;
};

// See the top of the file. Fields without a comment mean what they mean in Hugging Face's file. Only the trainer writes
// it; callbacks may read all of it, and keep their own state through CallbackRecord.
struct TrainerState {
  std::optional<double> epoch;  // passes over the data, with a fraction; std::nullopt before the first step
  int64_t global_step = 0;      // optimizer steps done
  int64_t max_steps = 0;        // the step at which the run ends
  // Intervals in steps: the options, with fractions of max_steps resolved (resolve_intervals in intervals.h).
  int64_t logging_steps = 500;
  int64_t eval_steps = 500;
  int64_t save_steps = 500;
  std::optional<int64_t> train_batch_size;  // samples in a micro-batch
  int64_t num_train_epochs = 0;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;                // floating-point operations of the model so far, over all ranks
  std::vector<MetricList> log_history;  // each with "epoch" and "step"
  std::optional<double> best_metric;
  std::optional<int64_t> best_global_step;
  std::optional<std::string> best_model_checkpoint;  // folder of the best save point
  std::vector<CallbackRecord> stateful_callbacks;
  std::string rerun_state;  // JSON of results that the next step computes again (RerunExit::Facts::state), or ""
  // Facts about this process and not about the run, but Hugging Face's file has them.
  bool is_local_process_zero = true;
  bool is_world_process_zero = true;
  bool operator==(const TrainerState&) const = default;

  // Returns the record of that name, or nullptr.
  const CallbackRecord* find_callback(const std::string& name) const;
  // Replaces the record of the same name, or appends it.
  void keep_callback(CallbackRecord record);

  // Has the keys of Hugging Face's file, sorted as there, in the lines of the history too.
  nlohmann::ordered_json to_json() const;
  // Absent fields keep their defaults, unknown ones are ignored. Throws DataError naming `file_name` and the field for
  // values that have the wrong type or are negative.
  static TrainerState from_json(nlohmann::ordered_json object, const std::string& file_name);

  // Writes atomically: the file is complete, or as it was before. Both throw DataError.
  void save(const std::filesystem::path& file) const;
  static TrainerState load(const std::filesystem::path& file);
};

}  // namespace megalith::train
