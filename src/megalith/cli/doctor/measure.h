// `megalith doctor --measure`: measures the speed of this machine and writes it as a cluster file for the planner.
#pragma once

#include "megalith/parallel/parallel_context.h"
#include "megalith/plan/cluster.h"

namespace megalith::cli {

// Times matrix products, attention, memory and, with several ranks, the links between them. All ranks call it and get
// the same result, that of the slowest rank. Takes about ten seconds on a CPU. Values that cannot be measured here
// (storage, links between nodes, all links with a single rank) come from the preset of a CPU or of the nearest GPU.
plan::Cluster measure_machine(parallel::ParallelContext& context);

}  // namespace megalith::cli
