// The parts of `megalith init`: a look at the machine, a look at the data, and the file that follows from both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/scored_rows.h"
#include "megalith/model/families/model_config.h"
#include "megalith/plan/cluster.h"

namespace megalith::cli {

// Devices, cores and memory for the ranks of a run.
struct Machine {
  plan::Cluster cluster;  // memory as found; speeds of the preset that is nearest
  int ranks = 1;          // GPUs, or 1 on the CPU
  int cores = 1;
  std::string in_words;  // "2 GPUs with 79.6 GiB each, 32 cores"
};
// Looks at the GPUs and cores of this machine. `gpus` and `gpu` (a preset or a cluster file) replace what is found, for
// a file that is meant for another machine. Throws ConfigError.
Machine look_at_machine(const std::optional<int64_t>& gpus, const std::optional<std::string>& gpu);

// The tasks that init writes files for.
enum class Task { kPretrain, kSft, kLora, kPreference, kKto, kReward, kClassify };
// Parses "pretrain", "sft", "lora", "preference", "kto", "reward" or "classify". Throws ConfigError.
Task task_of(const std::string& name);
std::string_view to_string(Task task);

// Kind, length and number of records, by the first ones.
struct DataLook {
  std::vector<std::string> names;  // files and folders, as the user gave them
  std::string in_words;            // "conversations (column messages)"
  bool documents = false, pairs = false, verdicts = false;
  std::optional<data::LabelForm> labels{};  // nullopt unless the records have a column label
  int64_t records = 0;                      // exact for small files, otherwise by their size
  int64_t longest_tokens = 0;               // among the records that were read
  double tokens_per_record = 0;             // mean of them

  // Returns the usual task for such data.
  Task usual_task() const;
};
// Reads the first records; `model_folder` may hold the tokenizer that counts their tokens. Throws DataError or
// ConfigError, as a run would.
DataLook look_at_data(const std::vector<std::string>& names, const std::filesystem::path& model_folder);

// Everything that a file is made from.
struct InitRequest {
  std::string model_name;              // as the user gave it
  std::filesystem::path model_folder;  // the folder of that name, or of the hub cache
  model::ModelConfig model;
  bool has_weights = false;
  DataLook data;
  Machine machine;
  Task task = Task::kSft;
  std::filesystem::path output;  // the file to write
};
// Returns the text of the file: a layout that fits by `megalith plan`, and options that suit the task, the data and the
// machine, each with a comment. The options have been checked as `megalith train` checks them. Throws ConfigError when
// nothing fits or the task does not suit the data.
std::string run_file(const InitRequest& request);

}  // namespace megalith::cli
