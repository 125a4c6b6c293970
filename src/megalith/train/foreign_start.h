// Makes a checkpoint of the weights and optimizer state of another program.
#pragma once

#include <cstdint>
#include <filesystem>

namespace megalith::train {

// `folder` holds a model and optimizer.safetensors, as `megalith convert` writes them, after `step` updates. Adds what
// else a checkpoint of a run has (progress.json, trainer_state.json), and then the manifest. A run that continues from
// it takes weights, optimizer and step from there, its schedule is that of its own options at that step, its data begin
// at their first sample, and its random streams are seeded.
void make_foreign_checkpoint(const std::filesystem::path& folder, int64_t step);

}  // namespace megalith::train
