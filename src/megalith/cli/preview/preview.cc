// `megalith preview TOPIC`: shows properties of a run by arithmetic alone. This file finds the topic and parses its
// words; each topic has a file of its own.
//
// Options are parsed as `train` options first, since a user of `preview` does not name a dialect. If they turn out to
// be Megatron's, they are parsed once more as `pretrain`, whose defaults differ.
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/layout/rank_grid.h"

namespace megalith::cli {

namespace {

std::vector<std::string> available_names() {
  std::vector<std::string> names;
  for (const Command& topic : preview_topics()) names.push_back(topic.name);
  return names;
}

// The text of `megalith preview --help`.
std::string list_of_topics() {
  std::string text = "megalith preview TOPIC [run.yaml] [options] [--json]: needs no GPU, no weights, no ranks\n\n";
  for (const Command& topic : preview_topics()) text += fmt::format("  {:<10} {}\n", topic.name, topic.summary);
  return text + "\nmegalith preview TOPIC --help   the options of a topic\n";
}

// Suggests the nearest name, as for options.
[[noreturn]] void throw_unknown_topic(const std::string& name) {
  const std::vector<std::string> names = available_names();
  const std::vector<std::string> near = nearest(name, names, 1);
  throw ConfigError(fmt::format("\"{}\" is not a topic of megalith preview{}. Topics: {}.", name,
                                near.empty() ? "" : fmt::format("; did you mean {}?", near[0]), list_in_words(names)));
}

// Returns whether an option was written as only Megatron's users write it.
bool is_megatron_only(const config::OptionUse& use, const std::string& topic) {
  if (use.given.ends_with("train_iters") || use.given.ends_with("train-iters") || use.name == "train_samples")
    return true;
  // Among the options of the topic itself, one that `train` does not list decides; others are left to their defaults.
  const auto match = config::OptionTable::instance().find(use.name);
  return match && match->option->topic == topic && !match->option->in_train;
}

// Returns the requested dialect, or the one to which the names of the options belong.
config::Dialect dialect_of(const std::optional<std::string>& asked, const config::OptionReport& report,
                           const std::string& topic) {
  if (asked) {
    check<ConfigError>(*asked == "train" || *asked == "pretrain",
                       "dialect is \"{}\"; it is train (ROLL's and Hugging Face's names and defaults) or pretrain "
                       "(Megatron-LM's)",
                       *asked);
    return *asked == "train" ? config::Dialect::kTrain : config::Dialect::kPretrain;
  }
  const auto from_megatron = [&topic](const config::OptionUse& use) { return is_megatron_only(use, topic); };
  return std::ranges::any_of(report.uses, from_megatron) ? config::Dialect::kPretrain : config::Dialect::kTrain;
}

}  // namespace

const std::vector<Command>& preview_topics() {
  static const std::vector<Command> table{
      {"groups", "process groups of every kind, data-parallel sizes", preview_groups, RunOptions::kTrain},
      {"layers", "which layers are on which pipeline stage", preview_layers, RunOptions::kTrain},
      {"batch", "global batch and micro-batches over the course of training", preview_batch, RunOptions::kTrain},
      {"lr", "learning rate and weight decay over the steps", preview_lr, RunOptions::kTrain},
      {"pipeline", "order of work on every pipeline rank", preview_pipeline, RunOptions::kTrain},
      {"memory", "memory that a rank needs, part by part", preview_memory, RunOptions::kTrain},
  };
  return table;
}

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
  const auto topic = std::ranges::find(preview_topics(), name, &Command::name);
  if (topic == preview_topics().end()) throw_unknown_topic(name);
  return topic->run(words.subspan(1));
}

std::optional<PreviewInput> read_preview(const PreviewUsage& usage, Words words,
                                         std::vector<config::CommandOption> own_options) {
  PreviewInput input;
  bool help = false;
  std::optional<std::string> dialect;
  if (usage.takes_dialect)
    own_options.push_back(
        {"dialect", "train or pretrain: whose defaults and units hold; by the options' names", &dialect});
  own_options.push_back({"json", "print one JSON object in place of a table", &input.json});
  own_options.push_back({"help", "print this", &help});
  config::ParseResult parsed = config::parse_arguments(config::Dialect::kTrain, words, own_options);
  if (help) {
    std::string text = fmt::format("{}\n\n", usage.text);
    for (const config::CommandOption& option : own_options)
      text += fmt::format("  --{}\n      {}\n", option.name, option.help);
    text += "\n" + config::help_text(config::Dialect::kTrain, usage.option_topic);
    if (usage.takes_dialect)
      text += "Megatron's names:\n\n" + config::help_text(config::Dialect::kPretrain, usage.option_topic);
    write_stdout(text);
    return std::nullopt;
  }
  if (usage.takes_dialect && dialect_of(dialect, parsed.report, usage.option_topic) == config::Dialect::kPretrain)
    // The first parse has set the flags of the command already; parsing again sets them to the same values.
    parsed = config::parse_arguments(config::Dialect::kPretrain, words, own_options);
  parsed.report.check_not_refused();
  for (const std::string& note : parsed.notes) log_info("{}", note);
  input.args = std::move(parsed.args);
  input.report = std::move(parsed.report);
  return input;
}

std::vector<config::CommandOption> media_options(plan::MediaRequest& media) {
  return {{"images_per_sample", "images of a sample, for a model that sees (1)", &media.images},
          {"image_pixels", "pixels of each (589824, or what the sequence has room for)", &media.image_pixels},
          {"sounds_per_sample", "sounds of a sample, for a model that hears (1)", &media.sounds},
          {"sound_seconds", "length of each (30, or what the sequence has room for)", &media.sound_seconds}};
}

int checked_world_size(const std::optional<int64_t>& world_size) {
  check<ConfigError>(world_size.has_value(), "world_size is not given; add --world_size N, the number of ranks");
  check<ConfigError>(*world_size >= 1 && *world_size <= layout::kMaxGridSize,
                     "world_size is {}; it must be a whole number from 1 to {}", *world_size, layout::kMaxGridSize);
  return static_cast<int>(*world_size);
}

int data_parallel_size(const config::TrainingArguments& args, const std::optional<int64_t>& world_size,
                       const std::optional<int64_t>& dp) {
  if (dp)
    check<ConfigError>(*dp >= 1 && *dp <= layout::kMaxGridSize, "dp is {}; it must be a whole number from 1 to {}", *dp,
                       layout::kMaxGridSize);
  if (!world_size) return static_cast<int>(dp.value_or(1));
  const layout::RankGrid grid(config::grid_shape(args, checked_world_size(world_size)));
  check<ConfigError>(!dp || *dp == grid.dp(), "dp {} does not fit: world_size {} gives dp {}; leave --dp out",
                     dp.value_or(0), grid.world_size(), grid.dp());
  return grid.dp();
}

std::string in_ranges(std::span<const int> numbers, size_t limit) {
  std::vector<std::string> runs;
  // {0, 1, 2, 3, 8} -> "0-3", "8".
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

}  // namespace megalith::cli
