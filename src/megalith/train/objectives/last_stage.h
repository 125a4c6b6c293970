// The end of a forward pass: token losses and, when wanted, whether predictions were right.
#pragma once

#include "megalith/model/gpt_model.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::train {

// `input` has targets, `chunk` the head. With `correct` the logits of the whole micro-batch exist at once; so it is
// without effect where the model is held so that they never do (ModelOptions::loss_chunk). Collective over tp.
MicrobatchOutput run_last_stage(const model::GptModel& chunk, model::ModelInput input, bool correct);

}  // namespace megalith::train
