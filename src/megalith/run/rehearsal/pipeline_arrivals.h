// PipelineArrivals: when the other stages of a pipeline send their messages to the rehearsed rank.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "megalith/layout/pipeline_schedule.h"
#include "megalith/layout/pipeline_timeline.h"

namespace megalith::run {

// The other stages are assumed to take as long for a micro-batch as the rehearsed one, and to start each action of
// their schedule as soon as its input is there (layout::pipeline_timeline). So the rank waits where the bubble is.
class PipelineArrivals {
 public:
  // `own` is the rehearsed pipeline rank; `costs` are in seconds.
  PipelineArrivals(const layout::PipelineShape& shape, int own, const layout::PipelineCosts& costs);

  void begin_step() { received_.clear(); }
  // Returns when `peer` sends the next message in this direction, in seconds since the step began; 0 after the last.
  double next(bool forward, int peer);

 private:
  using Direction = std::pair<bool, int>;          // forward, peer
  std::map<Direction, std::vector<double>> sent_;  // in the order of the receives
  std::map<Direction, size_t> received_;           // in this step
};

}  // namespace megalith::run
