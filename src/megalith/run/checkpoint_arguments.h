// use_checkpoint_args: a run takes its model's options from the checkpoint that it loads.
#pragma once

#include "megalith/config/parser.h"

namespace megalith::run {

// The options that describe the model and its tokenizer become those of the run that saved the checkpoint (load or
// pretrained_checkpoint), but for those that were given; a note says which. Nothing without use_checkpoint_args, or
// without either of the two, which validate() demands. Throws ConfigError where there is no checkpoint, or one of a run
// that took its model from a folder, and DataError for one without args.yaml.
void take_checkpoint_arguments(config::ParseResult& parsed);

}  // namespace megalith::run
