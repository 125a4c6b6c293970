// Memory of a rank's device: how much is in use, and the message of a run that has run out of it.
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

// The memory of one rank, in bytes.
struct MemoryFacts {
  std::vector<std::pair<std::string, double>> planned;  // "parameters", "gradients", "optimizer", "activations", …
  double used = 0;                                      // peak until the allocation failed
  double capacity = 0;                                  // all memory of the device; 0 when unknown
  int64_t tokens = 0;                                   // tokens of a micro-batch on this rank
  int64_t vocab = 0;                                    // columns of logits on this rank
  int sharers = 1;                                      // data-parallel ranks
};

// Collects the facts. `planned` comes from the planner; for a run that it cannot plan (planned_memory), it has the
// parameters only.
MemoryFacts memory_facts(const RunSettings& run, const model::ModelConfig& model,
                         const parallel::ParallelContext& context);

// Returns the message: what was planned, what was in use, and the three options, of those not in use, that would save
// most by estimate.
std::string out_of_memory_text(const plan::RunShape& run, const MemoryFacts& facts);

// Returns whether an allocation failed: in libtorch's allocators, the device's runtime or its libraries.
bool is_out_of_memory(const std::exception& error);

// Runs `work`. When memory runs out, throws Error with the message above in place of the allocator's.
void explain_out_of_memory(const plan::RunShape& run, const std::function<MemoryFacts()>& facts,
                           const std::function<void()>& work);

// Returns the peak in use so far: of the allocator on a GPU, of the process on the CPU.
int64_t peak_bytes(c10::Device device);
// Returns the bytes that the allocator of a device holds now, in use or not. Requires a GPU.
int64_t reserved_bytes(c10::Device device);
// Returns all memory of the device; 0 on the CPU.
int64_t capacity_bytes(c10::Device device);

}  // namespace megalith::run
