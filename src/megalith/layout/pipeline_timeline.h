// Simulates a pipeline schedule: when each action runs if every rank starts it as soon as the rank is free and the
// input has arrived.
#pragma once

#include <vector>

#include "megalith/layout/pipeline_schedule.h"

namespace megalith::layout {

// Durations, in any unit. A rank's backward takes both parts unless the schedule splits it.
struct PipelineCosts {
  double forward = 1;          // one micro-batch through one chunk
  double backward = 1;         // gradient of its input
  double weight_gradient = 1;  // gradient of its weights
  double transfer = 0;         // from one stage to the next
  double saved_by_pair = 0;    // how much shorter a forward and a backward are that run together
};

// The result of the simulation.
struct PipelineTimeline {
  // One action of a rank, from begin to end.
  struct Span {
    PipelineAction action;
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> ranks;  // compute actions, in order; the two of a pair begin and end together
  double length = 0;                     // time at which the last rank finishes
  // The fraction of all ranks' time spent waiting: 1 - work / (ranks · length).
  double bubble_fraction = 0;
};

// Throws ConfigError for shapes without a schedule, InternalError for one that would deadlock.
PipelineTimeline pipeline_timeline(const PipelineShape& shape, const PipelineCosts& costs);

}  // namespace megalith::layout
