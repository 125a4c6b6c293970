// Runs that are saved, and continued by others: golden models through the Trainer, by rank threads.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/train/trainer.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

// AdamW with warm-up and decay, shuffled data of 20 samples, 8 per step, saves every `save_steps` into `out`.
config::TrainingArguments resume_arguments(const std::filesystem::path& out, int64_t max_steps, int64_t save_steps);

// A run that starts from a checkpoint or from golden weights.
struct ResumeRun {
  std::string model = "llama";                        // golden
  std::optional<std::filesystem::path> checkpoint{};  // to continue; unset to begin with the golden weights
  std::vector<data::Sequence> samples{};              // 20 samples when empty
  std::function<void(const TrainerRank&, train::TrainerSetup&)> change{};
  // On each rank, when training stands where it begins, and after it.
  std::function<void(train::Trainer&)> begun{}, ended{};
  train::TrainOutput* output = nullptr;  // receives what train() returns on rank 0
};
// Trains as `how` says; gives the state of rank 0 at the end.
train::TrainerState run_resumable(const TrainerCase& how, const ResumeRun& run);

// The bytes of every file in a checkpoint that is the same for the same training state: weights, optimizer state and,
// for the same layout, random states.
void expect_same_tensors(const std::filesystem::path& actual, const std::filesystem::path& expected, bool with_rng);

}  // namespace megalith::testing
