// The extension module megalith._megalith: exceptions, options, ranks, models and trainers. Python's side of it, with
// the names and the documentation that users see, is in python/megalith. Whatever may wait, compute or call back into
// Python runs without the interpreter's lock.
#include <fmt/format.h>

#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "callbacks.h"
#include "dataset.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/run/exit_code.h"
#include "megalith/run/plan_inputs.h"
#include "objective.h"
#include "options.h"
#include "session.h"
#include "tokenizer.h"

namespace megalith::python {

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

// Python's class of each kind of error. They live as long as the interpreter.
std::map<std::string, PyObject*>& error_classes() {
  static std::map<std::string, PyObject*> classes;
  return classes;
}

// Adds an exception class with the given bases.
void add_error(py::module_& module, const char* name, const py::tuple& bases, const char* meaning) {
  const std::string full_name = std::string("megalith.") + name;
  PyObject* const made = PyErr_NewExceptionWithDoc(full_name.c_str(), meaning, bases.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  error_classes()[name] = made;
  module.attr(name) = py::reinterpret_borrow<py::object>(made);
}

void raise(const char* name, const std::exception& error) {
  PyErr_SetString(error_classes().at(name), run::error_text(error).c_str());
}

// ConfigError and DataError are also ValueErrors, the others RuntimeErrors, so that programs that know nothing about
// Megalith can tell bad input from failures.
void bind_errors(py::module_& module) {
  const auto base = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  add_error(module, "Error", py::make_tuple(base(PyExc_Exception)), "Base of everything that Megalith raises.");
  const py::object ours = module.attr("Error");
  add_error(module, "ConfigError", py::make_tuple(ours, base(PyExc_ValueError)),
            "An option, a layout or an argument must be changed.");
  add_error(module, "DataError", py::make_tuple(ours, base(PyExc_ValueError)),
            "A file or a sample is missing, damaged or has the wrong shape.");
  add_error(module, "CommError", py::make_tuple(ours, base(PyExc_RuntimeError)),
            "Another rank or the network has failed, or a time limit has passed.");
  add_error(module, "InternalError", py::make_tuple(ours, base(PyExc_RuntimeError)), "A bug in Megalith.");
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const ConfigError& error) {
      raise("ConfigError", error);
    } catch (const DataError& error) {
      raise("DataError", error);
    } catch (const CommError& error) {
      raise("CommError", error);
    } catch (const InternalError& error) {
      raise("InternalError", error);
    } catch (const Error& error) {
      raise("Error", error);
    }
  });
}

std::shared_ptr<const PythonDataset> dataset_of(const py::object& dataset, const std::string& name, bool keeps_items) {
  return dataset.is_none() ? nullptr : std::make_shared<const PythonDataset>(dataset, name, keeps_items);
}

// Makes a trainer from what Python brings. `eval_datasets` maps names to datasets; the name of a single one is "".
std::shared_ptr<RankTrainer> make_trainer(std::shared_ptr<LoadedModel> model, const py::object& train_dataset,
                                          const py::dict& eval_datasets, const py::object& collator,
                                          bool labels_shifted, const py::object& objective, const py::object& bridge) {
  OwnTrainerParts parts;
  const bool own_collator = !collator.is_none();
  const auto collate = [&](std::shared_ptr<const PythonDataset> dataset) {
    return own_collator ? python_collator(collator, std::move(dataset), labels_shifted) : data::CollateFunction();
  };
  if (const auto dataset = dataset_of(train_dataset, "train_dataset", own_collator)) {
    parts.train = dataset;
    parts.train_collate = collate(dataset);
  }
  for (const auto& [name, value] : eval_datasets) {
    const auto dataset = dataset_of(py::reinterpret_borrow<py::object>(value), "eval_dataset", own_collator);
    parts.eval.push_back({name.cast<std::string>(), dataset, collate(dataset)});
  }
  if (model->brings_data() && !parts.train && parts.eval.empty())
    throw ConfigError("there is no data: give train_dataset or eval_dataset, or name files in the arguments (dataset)");
  parts.file_collate = collate(nullptr);
  if (!objective.is_none()) parts.objective = python_objective(objective);
  if (py::len(bridge.attr("wanted")) > 0) parts.callbacks = make_python_callbacks(bridge);
  const py::gil_scoped_release unlocked;
  return std::make_shared<RankTrainer>(std::move(model), std::move(parts));
}

py::dict output_dict(const train::TrainOutput& output) {
  py::dict result;
  result["global_step"] = output.global_step;
  result["training_loss"] = output.training_loss;
  result["metrics"] = metrics_dict(output.metrics);
  result["interrupted"] = output.interrupted;
  return result;
}

py::dict train(RankTrainer& trainer, bool handles_signals) {
  train::TrainOutput output;
  {
    const py::gil_scoped_release unlocked;
    output = trainer.train(handles_signals);
  }
  py::dict result = output_dict(output);
  result["signal"] = trainer.received_signal();
  return result;
}

py::dict evaluate(RankTrainer& trainer, const std::string& prefix) {
  train::MetricList metrics;
  {
    const py::gil_scoped_release unlocked;
    metrics = trainer.trainer().evaluate(prefix);
  }
  return metrics_dict(metrics);
}

// The destructor of what frees tensors and joins threads must not hold the lock.
template <typename T>
std::shared_ptr<T> unlocked_at_end(std::shared_ptr<T> object) {
  T* const raw = object.get();
  return {raw, [kept = std::move(object)](T*) mutable {
            if (!PyGILState_Check()) return kept.reset();
            const py::gil_scoped_release unlocked;
            kept.reset();
          }};
}

void bind_runs(py::module_& module) {
  module.def(
      "initialize", [](const Options& options) { initialize(options); }, py::arg("options"), Unlocked());
  module.def("is_initialized", &run::is_distribute_initialized);
  module.def("shutdown", &shutdown, Unlocked());
  module.def("report_failure", &report_failure, py::arg("reason"), Unlocked());
  module.def("place", &place_of_process);
  module.def("quiet", &quiet_stderr, py::arg("quiet"));

  py::class_<LoadedModel, std::shared_ptr<LoadedModel>>(module, "Model")
      .def(py::init([](std::shared_ptr<Options> options, const std::string& folder) {
             std::shared_ptr<LoadedModel> model;
             {
               const py::gil_scoped_release unlocked;
               model = std::make_shared<LoadedModel>(std::move(options), folder);
             }
             return unlocked_at_end(std::move(model));
           }),
           py::arg("options"), py::arg("folder"))
      .def_property_readonly("folder", [](const LoadedModel& self) { return self.plan().model.folder.string(); })
      .def_property_readonly("family", [](const LoadedModel& self) { return self.plan().model.config.family; })
      .def_property_readonly("output_dir",
                             [](const LoadedModel& self) { return self.plan().settings.output.folder.string(); })
      .def_property_readonly("is_preference",
                             [](const LoadedModel& self) { return self.plan().preference.has_value(); })
      .def("num_parameters", [](LoadedModel& self) { return run::parameter_count(self.plan().model.config); })
      .def(
          "fits",
          [](const LoadedModel& self, const Options& options) {
            return self.options().parsed.args == options.parsed.args;
          },
          py::arg("options"))
      .def(
          "save", [](LoadedModel& self, const std::string& folder) { self.save(folder); }, py::arg("folder"),
          Unlocked())
      .def("close", &LoadedModel::close, Unlocked());

  py::class_<RankTrainer, std::shared_ptr<RankTrainer>>(module, "Trainer")
      .def(py::init([](std::shared_ptr<LoadedModel> model, const py::object& train_dataset,
                       const py::dict& eval_datasets, const py::object& collator, bool labels_shifted,
                       const py::object& objective, const py::object& bridge) {
             return unlocked_at_end(make_trainer(std::move(model), train_dataset, eval_datasets, collator,
                                                 labels_shifted, objective, bridge));
           }),
           py::arg("model"), py::arg("train_dataset"), py::arg("eval_datasets"), py::arg("data_collator"),
           py::arg("labels_shifted"), py::arg("objective"), py::arg("bridge"))
      .def("train", &train, py::arg("handles_signals"))
      .def("evaluate", &evaluate, py::arg("prefix"))
      .def(
          "save_model", [](RankTrainer& self, const std::string& folder) { self.trainer().save_model(folder); },
          py::arg("folder"), Unlocked())
      .def(
          "state",
          [](RankTrainer& self, size_t first_line) { return state_fields(self.trainer().state(), first_line); },
          py::arg("first_line"))
      .def("close", &RankTrainer::close, Unlocked());
}

}  // namespace

}  // namespace megalith::python

PYBIND11_MODULE(_megalith, module) {
  using namespace megalith::python;
  module.doc() = "The compiled part of megalith; use the package, not this module.";
  module.attr("version") = MEGALITH_VERSION;
  module.attr("torch_version") = MEGALITH_TORCH_VERSION;
  bind_errors(module);
  bind_options(module);
  bind_tokenizer(module);
  bind_runs(module);
}
