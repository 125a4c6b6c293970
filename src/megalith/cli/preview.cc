// `megalith preview TOPIC`: what a layout comes to, by arithmetic alone.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/cli/preview_internal.h"
#include "megalith/config/documents.h"
#include "megalith/layout/grid_shape.h"

namespace megalith::cli {

namespace {

struct Topic {
  std::string name;
  const char* summary;
  int (*run)(Words words);  // null: known, but not part of this version
};

const std::vector<Topic>& topics() {
  static const std::vector<Topic> table{
      {"groups", "process groups of every kind, data-parallel sizes", preview_groups},
      {"layers", "which layers stand on which pipeline stage", preview_layers},
      {"batch", "global batch and micro-batches as training goes on", preview_batch},
      {"pipeline", "order of work on every pipeline rank", nullptr},
      {"lr", "learning rate over the steps", nullptr},
      {"memory", "memory that a rank needs", nullptr},
  };
  return table;
}

std::vector<std::string> available_names() {
  std::vector<std::string> names;
  for (const Topic& topic : topics())
    if (topic.run) names.push_back(topic.name);
  return names;
}

std::string list_of_topics() {
  std::string text = "megalith preview TOPIC [run.yaml] [options] [--json]: needs no GPU, no model, no ranks\n\n";
  for (const Topic& topic : topics())
    if (topic.run) text += fmt::format("  {:<10} {}\n", topic.name, topic.summary);
  return text + "\nmegalith preview TOPIC --help   the options of a topic\n";
}

[[noreturn]] void throw_unknown(const std::string& name) {
  const std::vector<std::string> names = available_names();
  const std::vector<std::string> near = nearest(name, names, 1);
  throw ConfigError(fmt::format("\"{}\" is not a topic of megalith preview{}. Topics: {}.", name,
                                near.empty() ? "" : fmt::format("; did you mean {}?", near[0]), list_in_words(names)));
}

}  // namespace

int run_preview(Words words) {
  check<ConfigError>(!words.empty(),
                     "megalith preview needs a topic: {}. For example: megalith preview groups "
                     "--world-size 16 --tp 4 --pp 2",
                     list_in_words(available_names()));
  const std::string& name = words[0];
  if (name == "--help" || name == "-h" || name == "help") {
    write_stdout(list_of_topics());
    return kDone;
  }
  const auto topic = std::ranges::find(topics(), name, &Topic::name);
  if (topic == topics().end()) throw_unknown(name);
  check<ConfigError>(topic->run != nullptr, "megalith preview {} ({}) is not part of this version. Topics: {}.", name,
                     topic->summary, list_in_words(available_names()));
  return topic->run(words.subspan(1));
}

std::optional<PreviewInput> read_preview(const PreviewUsage& usage, Words words,
                                         std::vector<config::CommandOption> own_options) {
  PreviewInput input;
  bool help = false;
  own_options.push_back({"json", "print one JSON object in place of a table", &input.json});
  own_options.push_back({"help", "print this", &help});
  config::ParseResult parsed = config::parse_arguments(config::Dialect::kTrain, words, own_options);
  if (help) {
    std::string text = fmt::format("{}\n\n", usage.text);
    for (const config::CommandOption& option : own_options)
      text += fmt::format("  --{}\n      {}\n", option.name, option.help);
    text += "\n" + config::help_text(config::Dialect::kTrain, usage.option_topic);
    write_stdout(text);
    return std::nullopt;
  }
  parsed.report.check_not_refused();
  for (const std::string& note : parsed.notes) log_info("{}", note);
  input.args = std::move(parsed.args);
  return input;
}

int checked_world_size(const std::optional<int64_t>& world_size) {
  check<ConfigError>(world_size.has_value(), "world_size is not given; add --world_size N, the number of ranks");
  check<ConfigError>(*world_size >= 1 && *world_size <= layout::kMaxGridSize,
                     "world_size is {}; it must be a whole number from 1 to {}", *world_size, layout::kMaxGridSize);
  return static_cast<int>(*world_size);
}

std::string in_ranges(std::span<const int> numbers, size_t limit) {
  std::vector<std::string> runs;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back(end == begin + 1 ? fmt::format("{}", numbers[begin])
                                    : fmt::format("{}-{}", numbers[begin], numbers[end - 1]));
  }
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool last = i + 1 == runs.size();
    if (i + 1 >= limit && !last) {  // the last run stands for the rest
      text += "…,";
      i = runs.size() - 2;
      continue;
    }
    text += runs[i];
    if (!last) text += ",";
  }
  return text;
}

void write_stdout(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check<DataError>(written, "stdout cannot be written: {} bytes of output are lost", text.size());
}

}  // namespace megalith::cli
