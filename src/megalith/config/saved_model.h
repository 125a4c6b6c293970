// use_checkpoint_args: takes the options that describe the model from the run that saved a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"

namespace megalith::config {

// Copies from `saved` every option of the topics Model shape, Positions and latent attention, and Mixture of experts,
// and the tokenizer's files, except those in `given`, which keep their value in `args`. Returns the ones that have
// changed: "num_layers 24".
std::vector<std::string> take_model_of(const TrainingArguments& saved, const OptionReport& given,
                                       TrainingArguments& args);

}  // namespace megalith::config
