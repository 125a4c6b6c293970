// A loss that Python brings.
#pragma once

#include <functional>
#include <memory>

#include "megalith/model/virtual_models.h"
#include "megalith/train/objectives/objective.h"
#include "python_object.h"

namespace megalith::python {

// Returns a factory of objectives that call `objective`, a megalith.objective.Objective. Gradients flow through what it
// returns into the model, by autograd. Call it with the lock.
std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> python_objective(
    const py::object& objective);

}  // namespace megalith::python
