// The tokenizer, from Python.
#pragma once

#include "python_object.h"

namespace megalith::python {

// Adds class Tokenizer to the module.
void bind_tokenizer(py::module_& module);

}  // namespace megalith::python
