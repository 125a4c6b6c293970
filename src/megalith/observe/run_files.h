// The files that describe a run, in its output_dir.
#pragma once

#include <filesystem>

#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Writes `args.yaml` (every effective option; `megalith train args.yaml` does the same run) when training starts, and
// `trainer_state.json` when it ends; on world process zero.
class RunFilesCallback : public train::TrainerCallback {
 public:
  explicit RunFilesCallback(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
};

}  // namespace megalith::observe
