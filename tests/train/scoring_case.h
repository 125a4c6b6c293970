// Runs of models that score sequences: the texts of golden/trl/rewards.json through the Trainer, by rank threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/data/scored_rows.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

// Writes the …ForSequenceClassification of a golden language model: its weights but the head, and `score` [labels, h].
void write_scoring_model(const std::string& name, const at::Tensor& score, const nlohmann::json& changes,
                         const std::filesystem::path& to);

// The eight golden texts, with ids that a vocabulary has: the chosen answers, then the rejected ones.
std::vector<std::vector<int32_t>> golden_texts(int64_t vocab);
// Returns a text with its label (data/scored_rows.h), without 0 at its end.
data::Sequence scored_row(const std::vector<int32_t>& ids, int32_t label);
// Returns the four golden pairs as scored rows, with margins if there are any.
std::shared_ptr<const data::Dataset> scored_pairs(int64_t vocab, const std::vector<double>& margins = {});
// Returns the eight texts with the labels of a golden case. With `together` texts to a row.
std::shared_ptr<const data::Dataset> labelled_texts(int64_t vocab, const nlohmann::json& labels,
                                                    const data::LabelForm& form, size_t together = 1);

// Pairs or texts in one micro-batch, unless `microbatches` or `dp` share them.
TrainerCase reward_case(const std::string& name, int microbatches = 1, int dp = 1);
TrainerCase label_case(const std::string& name, int microbatches = 1, int dp = 1);

// Trains and evaluates on the data, with the log of rank 0. `save_to` gets the trained model.
RunLog run_scoring(const TrainerCase& how, const std::filesystem::path& folder,
                   const std::shared_ptr<const data::Dataset>& data, const std::filesystem::path& save_to = {});
// Makes the objective of a case's stage for the models of a rank.
std::unique_ptr<train::Objective> scoring_objective(const TrainerRank& rank);

// Returns the scores of texts by the model in a folder, fp32 [texts, labels].
at::Tensor scores_in(const std::filesystem::path& folder, const std::vector<std::vector<int32_t>>& texts,
                     const TrainerCase& layout = {});

// Returns a list of numbers, or of lists of them.
at::Tensor tensor_in(const nlohmann::json& numbers);

}  // namespace megalith::testing
