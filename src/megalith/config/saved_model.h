// use_checkpoint_args: options that describe the model come from the run that saved a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"

namespace megalith::config {

// Every option of the topics Model shape, Positions and latent attention, and Mixture of experts, and the tokenizer's
// files, as `saved` has them; but for those in `given`, which stay as they are in `args`. Gives those that have changed
// by it: "num_layers 24".
std::vector<std::string> take_model_of(const TrainingArguments& saved, const OptionReport& given,
                                       TrainingArguments& args);

}  // namespace megalith::config
