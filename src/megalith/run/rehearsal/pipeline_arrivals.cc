#include "megalith/run/rehearsal/pipeline_arrivals.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/layout/pipeline_transfers.h"

namespace megalith::run {

namespace {

using Kind = layout::PipelineAction::Kind;

// Returns the end of the action that produces a received message. Stage c·pp + p is chunk c of rank p.
double end_of_producer(const layout::PipelineTimeline& timeline, const layout::PipelineShape& shape,
                       const layout::PipelineTransfer& message, int own) {
  const int stage = message.chunk * shape.pp + own + (message.forward ? -1 : 1);
  const layout::PipelineAction action{message.forward ? Kind::kForward : Kind::kBackward, message.microbatch,
                                      stage / shape.pp};
  const auto& spans = timeline.ranks.at(static_cast<size_t>(stage % shape.pp));
  const auto span = std::ranges::find_if(spans, [&](const auto& s) { return s.action.same_work(action); });
  check(span != spans.end(), "no stage produces {}, which pipeline rank {} receives", action.text(), own);
  return span->end;
}

}  // namespace

PipelineArrivals::PipelineArrivals(const layout::PipelineShape& shape, int own, const layout::PipelineCosts& costs) {
  const layout::PipelineTimeline timeline = layout::pipeline_timeline(shape, costs);
  const layout::PipelineExchanges exchanges = layout::pipeline_transfers(shape).at(static_cast<size_t>(own));
  for (const auto& boundary : exchanges)
    for (const layout::PipelineTransfer& message : boundary)
      if (!message.send)
        sent_[{message.forward, message.peer}].push_back(end_of_producer(timeline, shape, message, own));
}

double PipelineArrivals::next(bool forward, int peer) {
  const std::vector<double>& times = sent_[{forward, peer}];
  const size_t number = received_[{forward, peer}]++;
  return number < times.size() ? times[number] : 0;
}

}  // namespace megalith::run
