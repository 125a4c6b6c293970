// Declarations shared by the topics of `megalith preview`. A topic parses its words by read_preview(), computes with
// `layout`, `plan` or `run`, and writes once with write_stdout(): a table for people, or with --json one object whose
// keys are stable. It starts no ranks and needs no GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/plan/run_shape.h"

namespace megalith::cli {

// The topics. Each gets the words after its name, writes text or JSON to stdout and returns an exit code.
int preview_groups(Words words);
int preview_layers(Words words);
int preview_batch(Words words);
int preview_lr(Words words);
int preview_pipeline(Words words);
int preview_memory(Words words);

// Describes a topic to --help, besides its own options.
struct PreviewUsage {
  const char* text;          // how to call the topic, and what it shows
  const char* option_topic;  // section of the option table with the options that matter most
  // The topic takes --dialect train|pretrain. When it is not given, options of this section that only Megatron has,
  // train_iters and train_samples select pretrain and its defaults.
  bool takes_dialect = false;
};

// The parsed words of a topic. The arguments are as given: topics derive and validate what they show.
struct PreviewInput {
  config::TrainingArguments args;
  config::OptionReport report;
  bool json = false;
};

// Parses the words after the topic: every option of the table, those of the topic, --json and --help. Returns
// std::nullopt if --help was given, after printing it. Throws ConfigError, also for options that Megalith refuses.
std::optional<PreviewInput> read_preview(const PreviewUsage& usage, Words words,
                                         std::vector<config::CommandOption> own_options);

// Returns the options that say which media a plan assumes, which write to `media`.
std::vector<config::CommandOption> media_options(plan::MediaRequest& media);

// Returns --world_size as a number of ranks. Throws ConfigError when it is missing or out of range.
int checked_world_size(const std::optional<int64_t>& world_size);

// Returns the data-parallel size: `dp`, or what follows from the world size and the arguments; 1 when neither is given.
// Throws ConfigError when both are given and contradict each other, or when a number is out of range.
int data_parallel_size(const config::TrainingArguments& args, const std::optional<int64_t>& world_size,
                       const std::optional<int64_t>& dp);

// Writes ascending numbers with neighbors joined: "0-3,8-11". Of more than `limit` runs, only the first ones and the
// last are written.
std::string in_ranges(std::span<const int> numbers, size_t limit = 4);

}  // namespace megalith::cli
