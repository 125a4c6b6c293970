#include "megalith/layout/pipeline_transfers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "megalith/layout/pipeline_timeline.h"

namespace megalith::layout {

namespace {

using Kind = PipelineAction::Kind;

// A message, as the sender sees it.
struct Message {
  double made = 0;  // time in the timeline
  bool forward = true;
  int microbatch = 0;
  int from_stage = 0;
  int after = 0;  // the sender's boundary
};

// Places every message of the ideal timeline; the rule and its proof are in the header.
class Planner {
 public:
  // The timeline has no transfer time: the order of messages must not depend on the network.
  explicit Planner(const PipelineShape& shape) : shape_(shape), timeline_(pipeline_timeline(shape, {})) {
    for (const auto& rank : timeline_.ranks) exchanges_.emplace_back(rank.size() + 1);
  }

  std::vector<PipelineExchanges> run() {
    std::vector<Message> messages;
    for (int rank = 0; rank < shape_.pp; ++rank) collect(rank, messages);
    // Keeps the receives of one boundary in the order of their sends.
    std::stable_sort(messages.begin(), messages.end(), [](const auto& a, const auto& b) { return a.made < b.made; });
    for (const Message& message : messages) place(message);
    return std::move(exchanges_);
  }

 private:
  // Lists the messages of a rank: each forward but the last stage's, each backward but the first stage's.
  void collect(int rank, std::vector<Message>& messages) const {
    const auto& spans = timeline_.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < spans.size(); ++i) {
      const PipelineAction& a = spans[i].action;
      const int stage = a.chunk * shape_.pp + rank, last = shape_.chunks * shape_.pp - 1;
      const bool forward = a.kind == Kind::kForward;
      if (a.kind == Kind::kWeightGradient || stage == (forward ? last : 0)) continue;
      messages.push_back({spans[i].end, forward, a.microbatch, stage, static_cast<int>(i) + (a.with_next ? 2 : 1)});
    }
  }

  // Adds the send after its action and the receive at the first boundary whose next action begins at `made` or later.
  void place(const Message& m) {
    const int to_stage = m.from_stage + (m.forward ? 1 : -1);
    const int from = m.from_stage % shape_.pp, to = to_stage % shape_.pp;
    exchanges_[static_cast<size_t>(from)][static_cast<size_t>(m.after)].push_back(
        {true, m.forward, to, m.microbatch, m.from_stage / shape_.pp});
    const auto& spans = timeline_.ranks[static_cast<size_t>(to)];
    const auto boundary =
        std::partition_point(spans.begin(), spans.end(), [&](const auto& span) { return span.begin < m.made; });
    exchanges_[static_cast<size_t>(to)][static_cast<size_t>(boundary - spans.begin())].push_back(
        {false, m.forward, from, m.microbatch, to_stage / shape_.pp});
  }

  const PipelineShape& shape_;
  const PipelineTimeline timeline_;
  std::vector<PipelineExchanges> exchanges_;
};

}  // namespace

std::vector<PipelineExchanges> pipeline_transfers(const PipelineShape& shape) { return Planner(shape).run(); }

PipelineConnections pipeline_connections(const PipelineExchanges& exchanges, bool forward) {
  std::set<int> send_to, receive_from;
  for (const auto& boundary : exchanges)
    for (const PipelineTransfer& t : boundary)
      if (t.forward == forward) (t.send ? send_to : receive_from).insert(t.peer);
  return {{send_to.begin(), send_to.end()}, {receive_from.begin(), receive_from.end()}};
}

}  // namespace megalith::layout
