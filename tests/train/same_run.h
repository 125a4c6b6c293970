// Two runs with the same losses, gradient norms and evaluation, as one run in two layouts has.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/close.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {

inline void expect_same_run(const RunLog& run, const RunLog& expected, const std::string& name) {
  SCOPED_TRACE(name);
  for (const char* key : {"loss", "grad_norm"}) {
    const std::vector<double> actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i) expect_close(actual[i], right[i], fmt::format("{} {}", key, i));
  }
  expect_close(*run.evaluation.find("eval_loss"), *expected.evaluation.find("eval_loss"), "eval_loss");
  if (const auto accuracy = run.evaluation.find("eval_token_accuracy")) {
    expect_close(*accuracy, *expected.evaluation.find("eval_token_accuracy"), "accuracy");
  }
}

}  // namespace megalith::testing
