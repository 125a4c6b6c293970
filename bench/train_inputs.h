// The small models and the data that benchmarks of whole runs train on, as in the peers' scripts, the command that
// does, and how long it takes to say something.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace megalith::bench {

constexpr int kVocab = 2048, kBatch = 8, kLength = 256;

// Width, layers, heads, key/value heads, width of the MLP (of a llama). Throws std::invalid_argument unless d256 or
// d512.
std::array<int, 5> train_shape(const std::string& shape);
// Writes model/config.json and data.jsonl into `folder`. `arch`: llama or gpt2.
void write_train_inputs(const std::string& arch, const std::string& shape, const testing::TempFolder& folder);
// `program` train on these inputs, `steps` steps, every one logged, nothing saved; output in folder/out.
std::vector<std::string> train_command(const std::string& program, int steps, const testing::TempFolder& folder);

// Seconds from exec until a program says a text, and until it has ended.
struct TimeTo {
  double text = 0, end = 0;
};
// Throws std::runtime_error unless it does both, the second with exit code 0.
TimeTo time_to(const std::string& text, const std::vector<std::string>& command);

}  // namespace megalith::bench
