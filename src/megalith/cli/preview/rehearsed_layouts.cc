// A layout is rehearsed with the options that `plan` prints for it, so that the check covers them as well.
#include "megalith/cli/preview/rehearsed_layouts.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/run/rehearsal/rehearsal_report.h"

namespace megalith::cli {

namespace {

// Turns the options of a layout, one per line ("key: value", "key: [a, b]"), into words of a command line.
std::vector<std::string> words_of(const std::string& yaml) {
  std::vector<std::string> words;
  for (std::string line : split(yaml, '\n')) {
    const size_t colon = line.find(": ");
    if (line.starts_with('#') || colon == std::string::npos) continue;
    std::erase_if(line, [](char c) { return c == '[' || c == ']' || c == ' '; });
    words.push_back("--" + line.substr(0, colon) + "=" + line.substr(colon + 1));
  }
  return words;
}

run::RehearsalRequest request_for(Words words, std::span<const config::CommandOption> own,
                                  const plan::Candidate& layout, const plan::SearchRequest& request,
                                  const run::PlannedModel& model) {
  std::vector<std::string> all(words.begin(), words.end());
  for (std::string& word : words_of(plan::train_yaml(layout))) all.push_back(std::move(word));
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, all, own);
  config::TrainingArguments args = run::planned_arguments(parsed.args, parsed.report);
  args.lora.additional_target = model.trained_modules;
  return run::rehearsal_request(
      args, model,
      {.world_size = request.gpus, .stage = layout.memory.pp_rank, .cluster = request.cluster, .steps = 2});
}

}  // namespace

RehearsedLayouts rehearse_layouts(Words words, std::span<const config::CommandOption> own,
                                  const plan::SearchRequest& request, const plan::SearchResult& result,
                                  const run::PlannedModel& model) {
  RehearsedLayouts layouts{"\nrehearsed on this machine, the fullest stage of each:\n",
                           nlohmann::ordered_json::array()};
  for (size_t i = 0; i < result.best.size(); ++i) {
    try {
      const run::RehearsalRequest rehearsal = request_for(words, own, result.best[i], request, model);
      const run::RehearsalResult found = run::rehearse(rehearsal);
      layouts.text += fmt::format("{:2}  {}\n", i + 1, run::rehearsal_line(found));
      layouts.json.push_back(run::rehearsal_json(rehearsal, found));
    } catch (const ConfigError& error) {
      layouts.text += fmt::format("{:2}  not rehearsed: {}\n", i + 1, error.what());
      layouts.json.push_back({{"why_not", error.what()}});
    }
  }
  return layouts;
}

}  // namespace megalith::cli
