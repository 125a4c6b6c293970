// The run's numbers as TensorBoard files (report_to: tensorboard, or wandb, which reads the same files).
#pragma once

#include <optional>

#include "megalith/observe/event_file.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// The tag of a metric: HF's with `train` ("train/loss", "eval/loss"), Megatron's with `pretrain` ("lm loss",
// "learning-rate", "lm loss validation").
std::string tensorboard_tag(config::Dialect dialect, std::string_view metric);

// Where the files go: logging_dir, or `tensorboard` in output_dir; nothing when report_to does not ask for them.
std::optional<std::filesystem::path> tensorboard_folder(const config::TrainingArguments& args);

// How Weights & Biases gets these files; nothing is sent by Megalith.
std::string wandb_sync_command(const std::filesystem::path& folder);

// Writes on world process zero: the arguments as text, then every logged number. With `pretrain` a loss also appears
// over the consumed samples ("lm loss vs samples"), and only every tensorboard_log_interval-th step is taken. The files
// of a resumed run tell TensorBoard to forget the steps that are done again.
class TensorboardCallback : public train::TrainerCallback {
 public:
  explicit TensorboardCallback(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::optional<EventFile> file_;
};

}  // namespace megalith::observe
