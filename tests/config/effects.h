// Rows of effects_test.cc: what an option that is called implemented changes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/config/parse_support.h"

namespace megalith::config {

struct Effect {
  const char* option;
  Words base;     // common to both runs
  Words without;  // the option at one value …
  Words with;     // … and at another
  std::function<std::string(const TrainingArguments&)> observe;
  Dialect dialect = Dialect::kTrain;
};

// Options of a model from scratch.
std::vector<Effect> model_effects();

}  // namespace megalith::config
