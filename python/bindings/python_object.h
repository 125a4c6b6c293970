// Python objects that C++ keeps: they are copied and dropped on threads that do not hold the interpreter's lock.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace megalith::python {

using SharedObject = std::shared_ptr<PyObject>;

// Takes a reference. The last copy to go takes the lock to drop it; after the interpreter has ended, nothing is
// dropped.
inline SharedObject share(const py::object& object) {
  return {py::object(object).release().ptr(), [](PyObject* kept) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire lock;
            Py_DECREF(kept);
          }};
}

// Returns the object, for a caller that holds the lock.
inline py::object object_of(const SharedObject& shared) { return py::reinterpret_borrow<py::object>(shared.get()); }

}  // namespace megalith::python
