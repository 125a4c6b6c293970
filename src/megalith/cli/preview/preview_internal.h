// What the topics of `megalith preview` share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"

namespace megalith::cli {

int preview_groups(Words words);
int preview_layers(Words words);
int preview_batch(Words words);
int preview_lr(Words words);
int preview_pipeline(Words words);
int preview_memory(Words words);

// What --help of a topic shows besides its own options.
struct PreviewUsage {
  const char* text;          // what is shown, and how it is called
  const char* option_topic;  // of the option table: the options that matter most
  // Takes --dialect train|pretrain. Not given: options that only Megatron has in this topic, train_iters and
  // train_samples mean pretrain, whose defaults then hold.
  bool takes_dialect = false;
};

struct PreviewInput {
  config::TrainingArguments args;
  config::OptionReport report;
  bool json = false;
};

// Reads the words behind the topic: every option of the table, those of the topic, --json and --help. Nothing when
// --help was given and has been answered. Throws ConfigError, also for options that Megalith refuses.
std::optional<PreviewInput> read_preview(const PreviewUsage& usage, Words words,
                                         std::vector<config::CommandOption> own_options);

// --world_size as a number of ranks; ConfigError when it is missing or out of range.
int checked_world_size(const std::optional<int64_t>& world_size);

// The data-parallel size: `dp`, or what follows from the world and the arguments; 1 when neither is given. ConfigError
// when both are and contradict each other, or a number is out of range.
int data_parallel_size(const config::TrainingArguments& args, const std::optional<int64_t>& world_size,
                       const std::optional<int64_t>& dp);

// Ascending numbers with neighbours joined: "0-3,8-11"; of more than `limit` runs the first ones and the last.
std::string in_ranges(std::span<const int> numbers, size_t limit = 4);

}  // namespace megalith::cli
