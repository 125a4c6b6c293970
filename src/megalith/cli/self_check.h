// The collective self-check: do these ranks, on these machines, with this layout, talk to one another correctly?
#pragma once

#include "megalith/parallel/parallel_context.h"

namespace megalith::cli {

// Runs every collective on every group of this rank and compares with the known answer; times a few. Rank 0 prints the
// table (or JSON) to stdout. Throws CommError naming the group and operation that gave a wrong answer.
void check_collectives(parallel::ParallelContext& context, bool json);

}  // namespace megalith::cli
