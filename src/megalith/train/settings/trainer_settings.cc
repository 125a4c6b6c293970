#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// An evaluation has no gradients to reduce, so its schedule leaves the points for that out.
layout::PipelineShape StepSettings::shape(int microbatches, bool forward_only) const {
  layout::PipelineShape shape = pipeline;
  shape.microbatches = microbatches;
  shape.forward_only = forward_only;
  if (forward_only) shape.sync = layout::PipelineSync::kLeaveOut;
  return shape;
}

}  // namespace megalith::train
