// Small models and data for benchmarks of whole runs, as in the peers' scripts; the command that trains on them; and a
// stopwatch for its output.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace megalith::bench {

// Sizes of all cases: a batch of 8 rows of 256 tokens is a few hundred milliseconds of work for a CPU.
constexpr int kVocab = 2048, kBatch = 8, kLength = 256;

// Returns width, layers, heads, key/value heads and width of the MLP (of a llama). Throws std::invalid_argument unless
// `shape` is d256 or d512.
std::array<int, 5> train_shape(const std::string& shape);
// Writes model/config.json and data.jsonl into `folder`. `arch` is llama or gpt2.
void write_train_inputs(const std::string& arch, const std::string& shape, const testing::TempFolder& folder);
// Returns the command that runs `program` train on these inputs for `steps` steps, each of them logged, without saving;
// its output is in folder/out.
std::vector<std::string> train_command(const std::string& program, int steps, const testing::TempFolder& folder);

// Seconds from exec until a program prints a text, and until it has ended.
struct TimeTo {
  double text = 0, end = 0;
};
// Runs a command and measures both. Throws std::runtime_error unless it prints the text and ends with exit code 0.
TimeTo time_to(const std::string& text, const std::vector<std::string>& command);

}  // namespace megalith::bench
