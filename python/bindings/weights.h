// Weights in memory, for Python.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "python_object.h"
#include "session.h"

namespace megalith::python {

// Adds class WeightStream, an iterator of lists of (name, tensor).
void bind_weights(py::module_& module);

// These take the lock only to make their results. `of` is "model", "base" or "adapter"; `dtype` a torch.dtype or None.
std::shared_ptr<model::WeightStream> stream_weights(LoadedModel& model, const std::string& of, const py::object& dtype,
                                                    std::optional<int> receiver, int64_t batch_bytes);
// Returns tuples (name, shape, offset, tensor, replica).
py::list weight_shards(LoadedModel& model, const std::string& of);
// Takes tuples (name, shape, [(offset, tensor), …]), and returns the names that are missing and those that are
// unexpected.
py::tuple set_weights(LoadedModel& model, const py::list& given, bool strict, const std::string& of);

}  // namespace megalith::python
