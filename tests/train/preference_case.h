// Runs of preference training: golden pairs and random ones through the Trainer, by rank threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/run/resolve/preference_settings.h"
#include "megalith/train/preference/preference_objective.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

// golden/hf/preference: what every field means is said in golden/hf/README.md.
struct GoldenPairs {
  nlohmann::json json;
  std::filesystem::path folder, policy, reference;  // pairs and the two models
  std::shared_ptr<const data::Dataset> pairs;
};
GoldenPairs read_golden_pairs();
// Returns the options of a kind in golden.json; std::nullopt for kinds that are not offered.
std::optional<config::PreferenceConfig> golden_preference(const nlohmann::json& golden, const std::string& kind);

// Returns the eight answers of those pairs in the order of golden/trl/answers.json, each with a verdict and the answer
// before it, as KTOTrainer takes them.
std::shared_ptr<const data::Dataset> golden_verdicts(const GoldenPairs& golden, const std::vector<bool>& verdicts);
// Sets the options of the golden runs: AdamW, and the number of steps.
void take_optimizer(const nlohmann::json& optimizer, config::TrainingArguments& args);

// Returns pairs of random ids, the same for the same seed.
std::shared_ptr<const data::Dataset> random_pairs(int64_t count, int64_t vocab, uint64_t seed = 11);

// A case that makes pairs, not tokens, its measure. `microbatches` of a step, on each data-parallel rank.
TrainerCase preference_case(const std::string& name, int pairs, int microbatches = 1, int dp = 1);

// A reference on this rank, from the files of a model.
std::unique_ptr<train::ReferenceModel> reference_on(const TrainerRank& rank, const std::filesystem::path& folder,
                                                    std::optional<double> ld_alpha = {});

// The files and data of a preference run.
struct PairRun {
  std::filesystem::path policy, reference;
  std::shared_ptr<const data::Dataset> pairs;  // to train on, and to evaluate on at the end
  std::filesystem::path save_to{};             // folder for the trained model; empty when it is not saved
};
// Trains and evaluates, with the log of rank 0. Stage kto takes answers with verdicts.
RunLog run_preferences(const TrainerCase& how, const PairRun& run);

// Trains six steps with dropout, then the last three again from the checkpoint after the third. Expects the bits of all
// states, and the same values of `keys` in each line. `change` completes the set-up.
void expect_continues(TrainerCase how, const std::function<void(const TrainerRank&, train::TrainerSetup&)>& change,
                      const std::vector<std::string>& keys);

}  // namespace megalith::testing
