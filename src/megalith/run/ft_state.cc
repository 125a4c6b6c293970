// Reads strictly, since a wrong limit would end a healthy run or hide a hung one; but a file that is refused is only
// reported, because everything in it can be learned again.
#include "megalith/run/ft_state.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::run {

namespace {

using Limit = std::optional<comm::LearnedLimits::Seconds>;

// Returns a limit of `section` if it was learned; given ones are not ours to keep.
Limit learned_limit(const io::JsonFields& fields, const char* name, bool learned) {
  if (!learned) return std::nullopt;
  return comm::LearnedLimits::Seconds(fields.positive<double>(name));
}

comm::LearnedLimits parse_ft_state(const std::filesystem::path& path) {
  const io::JsonFile file = io::read_json_file(path);
  comm::LearnedLimits limits;
  const auto timeouts = file.fields().object("current_timeouts").optional_object("section");
  if (!timeouts) return limits;
  const auto learned = timeouts->required<std::vector<std::string>>("calculated_sections");
  const auto is_learned = [&](const char* name) { return std::ranges::count(learned, name) > 0; };
  const io::JsonFields sections = timeouts->object("section");
  limits.setup = learned_limit(sections, "setup", is_learned("setup"));
  limits.step = learned_limit(sections, "step", is_learned("step"));
  limits.checkpointing = learned_limit(sections, "checkpointing", is_learned("checkpointing"));
  limits.outside = learned_limit(*timeouts, "out_of_section", timeouts->required<bool>("is_out_of_section_calculated"));
  if (const auto own = file.fields().optional_object("megalith"))
    limits.knows_evaluations = own->required<bool>("knows_evaluations");
  return limits;
}

io::Json number(const Limit& limit) { return limit ? io::Json(limit->count()) : io::Json(nullptr); }

}  // namespace

comm::LearnedLimits read_ft_state(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return {};
  try {
    const comm::LearnedLimits limits = parse_ft_state(file);
    if (limits.count() > 0) log_info("time limits of ranks from {}: {}", file.string(), limits.in_words());
    return limits;
  } catch (const DataError& error) {
    log_warning("{}; learned time limits are not used, and are learned again", error.what());
    return {};
  }
}

void write_ft_state(const std::filesystem::path& file, const comm::LearnedLimits& limits) {
  io::Json learned = io::Json::array();
  if (limits.checkpointing) learned.push_back("checkpointing");
  if (limits.setup) learned.push_back("setup");
  if (limits.step) learned.push_back("step");
  const io::Json section{{"section",
                          {{"setup", number(limits.setup)},
                           {"step", number(limits.step)},
                           {"checkpointing", number(limits.checkpointing)}}},
                         {"out_of_section", number(limits.outside)},
                         {"calculated_sections", learned},
                         {"is_out_of_section_calculated", limits.outside.has_value()}};
  const io::Json state{{"current_timeouts", {{"section", section}}},
                       {"megalith", {{"knows_evaluations", limits.knows_evaluations}}}};
  try {
    io::replace_text_file(file, state.dump(2) + "\n");
  } catch (const DataError& error) {
    log_warning("{}; learned time limits hold for this start only", error.what());
  }
}

}  // namespace megalith::run
