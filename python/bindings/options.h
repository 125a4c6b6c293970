// The options of a run as Python gives them.
#pragma once

#include <string>

#include "megalith/config/parser.h"
#include "python_object.h"

namespace megalith::python {

// Options in one dialect, parsed and checked one by one; immutable.
struct Options {
  config::ParseResult parsed;
};

// Returns every option that has a value, by its name. Call it with the lock.
py::dict options_dict(const config::TrainingArguments& args);

// Adds class Options to the module.
void bind_options(py::module_& module);

}  // namespace megalith::python
