// The sub-commands of `megalith data`, one function each.
#pragma once

#include "megalith/cli/command.h"

namespace megalith::cli {

int data_train_tokenizer(Words words);

}  // namespace megalith::cli
