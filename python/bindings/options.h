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

// Adds class Options to the module.
void bind_options(py::module_& module);

}  // namespace megalith::python
