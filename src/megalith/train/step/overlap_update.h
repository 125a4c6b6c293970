// Lets the optimizer update later layers beside the next forward pass (optim/overlap): which parts a model
// has, and which runs gain from it.
#pragma once

#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/optimizer.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// Returns the parts of a chunk in the order in which they run forward, with the FLOPs of their products per token. Of
// the first part, which holds towers and the embedding, none are counted: text alone uses nothing of it that counts.
std::vector<optim::ForwardPart> forward_parts(const model::GptModel& chunk);

// Tells `optimizer` to overlap its updates if `settings` want it and the run can: on a device with streams and several
// connections (CUDA_DEVICE_MAX_CONNECTIONS), with one chunk of the model, whose products do not run in fp8 (the plan
// takes their speed for that of 16 bits), and an optimizer that can. Returns whether it does.
bool overlap_updates(optim::Optimizer& optimizer, const model::VirtualModels& models,
                     const OverlapUpdateSettings& settings, TraceRecorder* trace);

}  // namespace megalith::train
