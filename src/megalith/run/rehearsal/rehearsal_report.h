// Renders rehearsals as text for people and as JSON for programs, beside what the planner says.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "megalith/run/rehearsal/rehearsal.h"

namespace megalith::run {

// Returns the rank and its layout, a table of times and memory beside the plan, and the communication of a step.
std::string rehearsal_text(const RehearsalRequest& request, const RehearsalResult& result);
// The same as an object: rank, stage, world_size, device, cluster, steps, rehearsed, planned, communication, waits.
// Numbers are seconds and bytes, not rounded.
nlohmann::ordered_json rehearsal_json(const RehearsalRequest& request, const RehearsalResult& result);

// Returns one line for a list of rehearsed layouts: step time and memory, rehearsed against planned.
std::string rehearsal_line(const RehearsalResult& result);

}  // namespace megalith::run
