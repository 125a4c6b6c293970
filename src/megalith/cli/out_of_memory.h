// What a run says when the memory of its device is used up.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/training_arguments.h"

namespace megalith::cli {

// Of one rank, in bytes.
struct MemoryFacts {
  std::vector<std::pair<std::string, double>> planned;  // "parameters", "gradients", "optimizer"
  double used = 0;                                      // when the allocation failed, all in all
  double capacity = 0;                                  // of the device; 0: unknown
  int64_t tokens = 0;                                   // of a micro-batch on this rank
  int64_t vocab = 0;                                    // columns of logits on this rank
  int sharers = 1;                                      // data-parallel ranks
};

// One message: what was planned, what was used, and the three options that would save most, by estimate, of those that
// are not in use.
std::string out_of_memory_text(const config::TrainingArguments& args, const MemoryFacts& facts);

}  // namespace megalith::cli
