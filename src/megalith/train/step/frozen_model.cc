// A frozen model is an evaluation whose objective keeps results instead of losses, so it shares the runner, the
// schedule and the context-parallel slicing with the model that is trained.
#include "megalith/train/step/frozen_model.h"

#include <utility>

namespace megalith::train {

FrozenModel::FrozenModel(model::VirtualModels models, const StepSettings& settings, std::unique_ptr<Objective> results)
    : models_(std::move(models)),
      results_(std::move(results)),
      runner_(models_, settings, models_.context(), *results_, no_trace_) {}

}  // namespace megalith::train
