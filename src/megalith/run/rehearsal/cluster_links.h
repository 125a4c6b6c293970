// ClusterLinks: how long the operations of a rehearsed rank last on a cluster.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megalith/comm/op/op_recorder.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/step_time.h"

namespace megalith::run {

// Uses the planner's speeds of groups (plan::GroupSpeed), so a plan and a rehearsal assume the same links. Used by one
// thread at a time.
class ClusterLinks {
 public:
  explicit ClusterLinks(plan::Cluster cluster) : cluster_(std::move(cluster)) {}

  // Returns the seconds of an operation, from the moment when all members have started it.
  double seconds(const comm::GroupInfo& group, const comm::OpInfo& op);
  // Returns the seconds of all operations of a total together, if its group has these world ranks.
  double seconds(const std::vector<int>& ranks, const comm::OpTotal& total) const;

 private:
  const plan::Cluster cluster_;
  std::map<std::string, plan::GroupSpeed> speeds_;  // by the id of the group
};

}  // namespace megalith::run
