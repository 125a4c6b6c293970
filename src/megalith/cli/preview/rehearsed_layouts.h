// `megalith plan --rehearse`: the layouts of a search, rehearsed on this machine.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/plan/search.h"
#include "megalith/run/plan_inputs.h"

namespace megalith::cli {

// One entry per layout, in the order of the search.
struct RehearsedLayouts {
  std::string text;             // a line each: rehearsed against planned, or why it cannot be rehearsed here
  nlohmann::ordered_json json;  // an object each: that of `rehearse --json`, or `why_not`
};

// Rehearses the fullest stage of each layout that `result` holds, for a few steps. `words` are those of the command,
// with its `own` options among them: the others hold except where the layout decides. `model` is that of the search.
RehearsedLayouts rehearse_layouts(Words words, std::span<const config::CommandOption> own,
                                  const plan::SearchRequest& request, const plan::SearchResult& result,
                                  const run::PlannedModel& model);

}  // namespace megalith::cli
