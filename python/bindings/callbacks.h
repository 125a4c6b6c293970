// Callbacks that Python brings.
#pragma once

#include <memory>

#include "megalith/train/report/callback.h"
#include "python_object.h"

namespace megalith::python {

// Passes events to `bridge`, a megalith.callbacks.Bridge: bridge.wanted names the events, bridge.event(…) delivers one
// and returns the flags of TrainerControl, of which those that are set are raised. The lock is taken for events that
// are wanted, and for no others. Call it with the lock.
std::unique_ptr<train::TrainerCallback> make_python_callbacks(const py::object& bridge);

// Returns the fields of a state for megalith.callbacks.TrainerState, with the log lines from number `first_line` on.
// Call it with the lock.
py::dict state_fields(const train::TrainerState& state, size_t first_line);

py::dict metrics_dict(const train::MetricList& metrics);

}  // namespace megalith::python
