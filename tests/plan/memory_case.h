// Runs whose memory is measured: small models from config.json values, on rank threads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/model/families/model_config.h"
#include "megalith/plan/run_shape.h"

namespace megalith::testing {

// A family's config.json of some size; `changes` win.
model::ModelConfig plan_model(const std::string& family, const nlohmann::json& changes = {});

// A run whose planned memory is compared with the measured one.
struct MemoryCase {
  std::string name;
  model::ModelConfig model;        // with the arguments' say
  config::TrainingArguments args;  // derived
  int world = 1;
  int64_t length = 0;
  // For models with towers: images of each sample, patches along their sides, sounds, frames of each, and what is not
  // trained.
  int64_t images = 0, image_side = 0;
  int64_t sounds = 0, sound_frames = 0;
  model::FreezePlan freeze = {};

  plan::RunShape shape() const;
};

// The case of these options (as on the command line).
MemoryCase memory_case(const std::string& name, const model::ModelConfig& model, const std::vector<std::string>& words,
                       int world, int64_t length);

// A case that follows from the seed: family, sizes, layout, recomputation, precision, batch. Experts get as many rows
// as they have room for, so that their number is known: alltoall sends the padding, too.
MemoryCase random_memory_case(uint64_t seed);

// Bytes of tensors on each rank: at most in two steps of training, and while its state was made.
struct MeasuredMemory {
  int pp_rank = 0;
  double step = 0, always = 0, making = 0;
};
std::vector<MeasuredMemory> measure_memory(const MemoryCase& how);

}  // namespace megalith::testing
