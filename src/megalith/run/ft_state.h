// ft_state.json: the file in a run's folder that keeps learned time limits (calc_ft_timeouts) from one start to the
// next. Its format is that of NVIDIA's resiliency extension, so that Megatron-LM can read what Megalith learned, and
// the other way round.
//
// current_timeouts.section holds
//
//   section                       {"setup": 600.0, "step": 5.0, "checkpointing": null}: seconds; null if not learned
//   out_of_section                the same for the time outside sections
//   calculated_sections           ["setup", "step"]: the sections whose limits were learned
//   is_out_of_section_calculated  whether that of out_of_section was
//
// and megalith.knows_evaluations says whether the limit of a step holds for evaluations.
#pragma once

#include <filesystem>

#include "megalith/comm/launch/learned_limits.h"

namespace megalith::run {

inline constexpr const char* kFtStateFile = "ft_state.json";

// Returns the limits in `file`, which it logs; none if there is no such file. A file that cannot be understood costs
// its limits, not the run: it is named in a warning, and the next limits that are learned replace it.
comm::LearnedLimits read_ft_state(const std::filesystem::path& file);
// Replaces `file`. A file that cannot be written is named in a warning.
void write_ft_state(const std::filesystem::path& file, const comm::LearnedLimits& limits);

}  // namespace megalith::run
