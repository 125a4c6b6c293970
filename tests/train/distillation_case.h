// Runs of distillation: golden and random texts through the Trainer, by rank threads.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/train/distillation/distillation_objective.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

// tests/data/distillation: what every field means is said in its maker.
nlohmann::json read_golden_distillation();
// Returns the options of a case in it.
config::DistillationConfig golden_distillation(const nlohmann::json& options);

// The folder of a random teacher for models with a vocabulary of 256: of another family, width and depth than those of
// golden/hf.
std::filesystem::path other_teacher();

// A teacher on this rank, from the files of a model.
std::unique_ptr<train::TeacherModel> teacher_on(const TrainerRank& rank, const std::filesystem::path& folder);

// The files and data of a run; the student has an adapter with finetuning_type lora.
struct DistillationRun {
  std::filesystem::path student, teacher;
  std::vector<data::Sequence> samples;  // to train on, and to evaluate on at the end
};
// Trains and evaluates, with the log of rank 0.
RunLog run_distillation(const TrainerCase& how, const DistillationRun& run);

}  // namespace megalith::testing
