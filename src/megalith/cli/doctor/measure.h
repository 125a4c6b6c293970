// `megalith doctor --measure`: how fast this machine computes and talks, as a cluster file for the planner.
#pragma once

#include "megalith/parallel/parallel_context.h"
#include "megalith/plan/cluster.h"

namespace megalith::cli {

// Times matrix products, attention, memory and, with several ranks, the links between them. All ranks call it and get
// the same: the slowest rank counts. Takes about ten seconds on a CPU. What cannot be measured here (storage, links
// between nodes, with one rank all links) is the preset's of a CPU or of the GPU that comes nearest.
plan::Cluster measure_machine(parallel::ParallelContext& context);

}  // namespace megalith::cli
