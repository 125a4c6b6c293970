// The extension module megalith._megalith: exceptions, options, ranks, models and trainers. Python's side of it, with
// the names and the documentation that users see, is in python/megalith. Whatever may wait, compute or call back into
// Python runs without the interpreter's lock.
#include <ATen/Parallel.h>
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
#include "megalith/base/log_receiver.h"
#include "megalith/run/exit_code.h"
#include "megalith/run/plan_inputs.h"
#include "objective.h"
#include "options.h"
#include "pretrain.h"
#include "session.h"
#include "tokenizer.h"
#include "weights.h"

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

// Makes the C++ side of one dataset: numbered samples, or, where `may_stream`, a stream.
OwnTrainerParts::Data data_of(const py::object& given, const std::string& name, const py::object& collator,
                              bool labels_shifted, bool may_stream) {
  OwnTrainerParts::Data data;
  const bool own_collator = !collator.is_none();
  std::shared_ptr<const ItemKeeper> keeper;
  if (py::isinstance<ColumnDataset>(given)) {
    data.dataset = given.cast<std::shared_ptr<ColumnDataset>>();
  } else if (may_stream && !is_dataset(given)) {
    const auto streams = std::make_shared<const PythonStreams>(given, name, own_collator);
    data.stream = [streams](int64_t epoch) { return PythonStreams::open(streams, epoch); };
    keeper = streams;
  } else {
    const auto dataset = std::make_shared<const PythonDataset>(given, name, own_collator);
    data.dataset = dataset;
    keeper = dataset;
  }
  if (own_collator) data.collate = python_collator(collator, std::move(keeper), labels_shifted);
  return data;
}

// Makes a trainer from what Python brings. `eval_datasets` maps names to datasets; the name of a single one is "".
std::shared_ptr<RankTrainer> make_trainer(std::shared_ptr<LoadedModel> model, const py::object& train_dataset,
                                          const py::dict& eval_datasets, const py::object& collator,
                                          bool labels_shifted, const py::object& objective, const py::object& bridge) {
  OwnTrainerParts parts;
  if (!train_dataset.is_none()) parts.train = data_of(train_dataset, "train_dataset", collator, labels_shifted, true);
  for (const auto& [name, value] : eval_datasets)
    parts.eval.emplace_back(name.cast<std::string>(), data_of(py::reinterpret_borrow<py::object>(value), "eval_dataset",
                                                              collator, labels_shifted, false));
  if (model->brings_data() && !parts.train && parts.eval.empty())
    throw ConfigError("there is no data: give train_dataset or eval_dataset, or name files in the arguments (dataset)");
  if (!collator.is_none()) parts.file_collate = python_collator(collator, nullptr, labels_shifted);
  if (!objective.is_none()) parts.objective = python_objective(objective);
  if (py::len(bridge.attr("wanted")) > 0) parts.callbacks = make_python_callbacks(bridge);
  const py::gil_scoped_release unlocked;
  return std::make_shared<RankTrainer>(std::move(model), std::move(parts));
}

std::shared_ptr<ColumnDataset> make_columns(const py::list& chunks, const std::optional<at::Tensor>& order,
                                            const std::string& name) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  const auto column = [](const Pair& pair) { return ColumnDataset::Column{pair.first, pair.second}; };
  std::vector<ColumnDataset::Chunk> made;
  for (const py::handle each : chunks) {
    const auto [ids, labels, mask] = each.cast<std::tuple<Pair, std::optional<Pair>, std::optional<Pair>>>();
    ColumnDataset::Chunk chunk{.ids = column(ids)};
    if (labels) chunk.labels = column(*labels);
    if (mask) chunk.mask = column(*mask);
    made.push_back(std::move(chunk));
  }
  return std::make_shared<ColumnDataset>(std::move(made), order.value_or(at::Tensor()), name);
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

// Lines of the log go to `receiver`, a function of the level's name and the line; None brings stderr back.
void log_to(const py::object& receiver) {
  if (receiver.is_none()) return set_log_receiver(nullptr);
  set_log_receiver([call = share(receiver)](LogLevel level, std::string_view line) {
    static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire lock;
    object_of(call)(kNames[static_cast<size_t>(level)], line);
  });
}

void bind_runs(py::module_& module) {
  module.def("quiet", &quiet_stderr, py::arg("quiet"));
  module.def("log_to", &log_to, py::arg("receiver"));
  module.def(
      "set_num_threads", [](int threads) { at::set_num_threads(threads); }, py::arg("threads"));

  py::class_<Rank, std::shared_ptr<Rank>>(module, "Rank")
      .def_static("of_process", &Rank::of_process)
      .def_static("of_threads", &Rank::of_threads, py::arg("size"), py::arg("timeout"))
      .def("initialize", &Rank::initialize, py::arg("options"), Unlocked())
      .def_property_readonly("is_initialized", &Rank::is_initialized)
      .def("shutdown", &Rank::shutdown, Unlocked())
      .def("abandon", &Rank::abandon, Unlocked())
      .def("report_failure", &Rank::report_failure, py::arg("reason"), Unlocked())
      .def("place", &Rank::place);

  // Chunks are tuples (input_ids, labels, attention_mask) of columns (values, offsets), the last two of which may be
  // None.
  py::class_<ColumnDataset, std::shared_ptr<ColumnDataset>>(module, "ColumnDataset")
      .def(py::init(&make_columns), py::arg("chunks"), py::arg("order"), py::arg("name"))
      .def("__len__", &ColumnDataset::size);

  py::class_<LoadedModel, std::shared_ptr<LoadedModel>>(module, "Model")
      .def(py::init([](std::shared_ptr<Rank> rank, std::shared_ptr<Options> options, const std::string& folder) {
             std::shared_ptr<LoadedModel> model;
             {
               const py::gil_scoped_release unlocked;
               model = std::make_shared<LoadedModel>(std::move(rank), std::move(options), folder);
             }
             return unlocked_at_end(std::move(model));
           }),
           py::arg("rank"), py::arg("options"), py::arg("folder"))
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
      .def("stream", &stream_weights, py::arg("of"), py::arg("dtype"), py::arg("receiver"), py::arg("batch_bytes"))
      .def("shards", &weight_shards, py::arg("of"))
      .def("set_weights", &set_weights, py::arg("given"), py::arg("strict"), py::arg("of"))
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
  bind_weights(module);
  bind_runs(module);
  bind_pretrain(module);
}
