// A run on one rank, from a model and its data to the exported model: what `train` and `pretrain` share.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/parser.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/trainer.h"

namespace megalith::cli {

// Flags of a run that are no options of the table: they do not change its result.
struct RunFlags {
  bool dry_run = false, help = false, timing = false;
  std::optional<std::string> topic, trace;
  // Declares itself to the parser, so it must not move while that runs.
  std::vector<config::CommandOption> options();
};

// output_dir can be written, and holds nothing that a fresh run would mix with. Throws ConfigError. Makes the folder.
void check_output_folder(const config::SaveConfig& save);

struct RunParts {
  train::TrainerSetup setup;                              // data, objective, resume, assets; callbacks that come first
  std::vector<std::pair<std::string, std::string>> data;  // for the summary: "train", "1,024 samples"
  int64_t sequence_length = 0;                            // longest
};

// Trains and exports, evaluates when asked; says on stderr what it does. `args` after derive(). All ranks call it.
void run_training(model::VirtualModels& models, const config::TrainingArguments& args, const RunFlags& flags,
                  RunParts parts);

}  // namespace megalith::cli
