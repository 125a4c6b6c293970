#include "megalith/run/rehearsal/cluster_links.h"

namespace megalith::run {

namespace {

// A broadcast passes the tensor on along a ring, as an all-gather does; a barrier exchanges nothing but its arrival.
double seconds_of(const plan::GroupSpeed& speed, comm::OpKind kind, double bytes) {
  switch (kind) {
    case comm::OpKind::kAllReduce:
      return speed.all_reduce(bytes);
    case comm::OpKind::kAllGather:
    case comm::OpKind::kBroadcast:
      return speed.all_gather(bytes);
    case comm::OpKind::kReduceScatter:
      return speed.reduce_scatter(bytes);
    case comm::OpKind::kAllToAll:
      return speed.all_to_all(bytes);
    case comm::OpKind::kBarrier:
      return speed.all_gather(0);
    case comm::OpKind::kSend:
    case comm::OpKind::kRecv:
      return speed.message(bytes);
  }
  return 0;
}

}  // namespace

double ClusterLinks::seconds(const comm::GroupInfo& group, const comm::OpInfo& op) {
  auto speed = speeds_.find(group.id);
  if (speed == speeds_.end()) speed = speeds_.emplace(group.id, plan::GroupSpeed(cluster_, group.ranks)).first;
  return seconds_of(speed->second, op.kind, static_cast<double>(op.bytes));
}

// The seconds of an operation grow in proportion to its bytes, from a latency: so the mean size gives the exact sum.
double ClusterLinks::seconds(const std::vector<int>& ranks, const comm::OpTotal& total) const {
  if (total.operations == 0) return 0;
  const auto operations = static_cast<double>(total.operations);
  return operations *
         seconds_of(plan::GroupSpeed(cluster_, ranks), total.kind, static_cast<double>(total.bytes) / operations);
}

}  // namespace megalith::run
