// When each action of a pipeline schedule runs, if every rank starts it as soon as it is free and what it needs is
// there.
#pragma once

#include <vector>

#include "megalith/layout/pipeline_schedule.h"

namespace megalith::layout {

// What work costs, in any unit. A rank's backward is both parts unless the schedule splits it.
struct PipelineCosts {
  double forward = 1;          // of one micro-batch through one chunk
  double backward = 1;         // gradient of its input
  double weight_gradient = 1;  // gradient of its weights
  double transfer = 0;         // from one stage to the next
};

struct PipelineTimeline {
  struct Span {
    PipelineAction action;
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> ranks;  // compute actions, in order
  double length = 0;                     // when the last rank is done
  // The part of all ranks' time in which they wait: 1 - work / (ranks · length).
  double bubble_fraction = 0;
};

// Throws ConfigError for shapes without a schedule, InternalError for one that would deadlock.
PipelineTimeline pipeline_timeline(const PipelineShape& shape, const PipelineCosts& costs);

}  // namespace megalith::layout
