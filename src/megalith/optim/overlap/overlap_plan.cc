#include "megalith/optim/overlap/overlap_plan.h"

namespace megalith::optim {

namespace {

// Whether the update of every part from `first` on is ready when its forward begins, if all of them follow one another.
bool in_time(std::span<const PartWork> parts, size_t first) {
  double forward = 0, update = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i >= first) update += parts[i].side_seconds;
    if (i >= first && update > forward) return false;
    forward += parts[i].forward_seconds;
  }
  return true;
}

double side_seconds(std::span<const PartWork> parts) {
  double sum = 0;
  for (const PartWork& part : parts) sum += part.side_seconds;
  return sum;
}

}  // namespace

OverlapPlan plan_overlap(std::span<const PartWork> parts, const OverlapLimits& limits) {
  const OverlapPlan none{.first = parts.size(), .spared = 0};
  size_t first = 0;
  while (first < parts.size() && (side_seconds(parts.first(first)) < limits.least_first || !in_time(parts, first)))
    ++first;
  const double beside = side_seconds(parts.subspan(first));
  if (beside == 0 || beside < limits.least_beside) return none;
  OverlapPlan plan{.first = first, .spared = 0};
  for (double forward = 0; plan.spared < parts.size() && forward < beside; ++plan.spared)
    forward += parts[plan.spared].forward_seconds;
  return plan;
}

}  // namespace megalith::optim
