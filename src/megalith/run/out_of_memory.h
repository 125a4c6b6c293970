// The memory of a rank's device: how much is used, and what a run says when there is no more.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// Of one rank, in bytes.
struct MemoryFacts {
  std::vector<std::pair<std::string, double>> planned;  // "parameters", "gradients", "optimizer", "activations", …
  double used = 0;                                      // at most, until the allocation failed
  double capacity = 0;                                  // of the device; 0: unknown
  int64_t tokens = 0;                                   // of a micro-batch on this rank
  int64_t vocab = 0;                                    // columns of logits on this rank
  int sharers = 1;                                      // data-parallel ranks
};

// By the planner; where it does not know the run (planned_memory), the parameters alone.
MemoryFacts memory_facts(const RunSettings& run, const model::ModelConfig& model,
                         const parallel::ParallelContext& context);

// One message: what was planned, what was used, and the three options that would save most, by estimate, of those that
// are not in use.
std::string out_of_memory_text(const plan::RunShape& run, const MemoryFacts& facts);

// Whether an allocation failed: one of libtorch's allocators, of the device's runtime or of its libraries.
bool is_out_of_memory(const std::exception& error);

// Does the work; when memory runs out, throws Error with that message in place of what the allocator says.
void explain_out_of_memory(const plan::RunShape& run, const std::function<MemoryFacts()>& facts,
                           const std::function<void()>& work);

// The most that was in use so far: of the allocator on a device, otherwise of the process.
int64_t peak_bytes(c10::Device device);
// What the allocator of a device holds now, in use or not. Requires a device with one.
int64_t reserved_bytes(c10::Device device);
// All that the device has; 0 on the CPU.
int64_t capacity_bytes(c10::Device device);

}  // namespace megalith::run
