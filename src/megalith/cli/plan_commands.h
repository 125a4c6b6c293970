// The commands that plan runs: `megalith plan` and `megalith preview memory`.
#pragma once

#include "megalith/cli/command.h"

namespace megalith::cli {

int run_plan(Words words);
int preview_memory(Words words);

}  // namespace megalith::cli
