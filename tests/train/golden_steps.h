// Steps of AdamW on golden data through the trainer: losses and gradient norms of Hugging Face's library.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>

#include "tests/train/trainer_case.h"

namespace megalith::testing {

// ids, labels int64 [b, s]; `expected`: "train" of a golden.json.
void expect_golden_steps(const std::filesystem::path& model, const at::Tensor& ids, const at::Tensor& labels,
                         const nlohmann::json& expected, TrainerCase how);
// The losses before each step and after the last, and the gradient norms, of a run.
void expect_golden_log(const RunLog& run, const nlohmann::json& expected);

}  // namespace megalith::testing
