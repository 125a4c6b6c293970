// Events on their way to Python. Nothing of TrainerEvent survives the call, so Python gets copies: the fields of the
// state, and those log lines that it does not have yet.
#include "callbacks.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace megalith::python {

namespace {

class PythonCallbacks : public train::TrainerCallback {
 public:
  explicit PythonCallbacks(const py::object& bridge)
      : bridge_(share(bridge)), wanted_(bridge.attr("wanted").cast<std::set<std::string>>()) {}

  void on_train_begin(train::TrainerEvent& event) override { deliver("on_train_begin", event); }
  void on_train_end(train::TrainerEvent& event) override { deliver("on_train_end", event); }
  void on_epoch_begin(train::TrainerEvent& event) override { deliver("on_epoch_begin", event); }
  void on_epoch_end(train::TrainerEvent& event) override { deliver("on_epoch_end", event); }
  void on_step_begin(train::TrainerEvent& event) override { deliver("on_step_begin", event); }
  void on_substep_end(train::TrainerEvent& event) override { deliver("on_substep_end", event); }
  void on_pre_optimizer_step(train::TrainerEvent& event) override { deliver("on_pre_optimizer_step", event); }
  void on_optimizer_step(train::TrainerEvent& event) override { deliver("on_optimizer_step", event); }
  void on_step_end(train::TrainerEvent& event) override { deliver("on_step_end", event); }
  void on_evaluate(train::TrainerEvent& event) override { deliver("on_evaluate", event); }
  void on_save(train::TrainerEvent& event) override { deliver("on_save", event); }
  void on_log(train::TrainerEvent& event) override { deliver("on_log", event); }

 private:
  void deliver(const std::string& name, train::TrainerEvent& event) {
    if (!wanted_.contains(name)) return;
    const py::gil_scoped_acquire lock;
    train::TrainerControl& control = event.control;
    const py::dict flags(
        py::arg("should_training_stop") = control.should_training_stop,
        py::arg("should_epoch_stop") = control.should_epoch_stop, py::arg("should_save") = control.should_save,
        py::arg("should_evaluate") = control.should_evaluate, py::arg("should_log") = control.should_log);
    const py::object bridge = object_of(bridge_);
    const auto known = bridge.attr("known_lines").cast<size_t>();
    const py::dict raised = bridge.attr("event")(name, state_fields(event.state, known), flags,
                                                 metrics_dict(event.metrics), event.folder.string());
    // No callback may clear a flag that another one has set.
    control.should_training_stop |= raised["should_training_stop"].cast<bool>();
    control.should_epoch_stop |= raised["should_epoch_stop"].cast<bool>();
    control.should_save |= raised["should_save"].cast<bool>();
    control.should_evaluate |= raised["should_evaluate"].cast<bool>();
    control.should_log |= raised["should_log"].cast<bool>();
  }

  const SharedObject bridge_;
  const std::set<std::string> wanted_;
};

}  // namespace

// Counts are integers, as in every file that has them.
py::dict metrics_dict(const train::MetricList& metrics) {
  py::dict result;
  const nlohmann::ordered_json json = metrics.to_json();
  for (const auto& [name, value] : metrics)
    result[py::str(name)] = json[name].is_number_integer() ? py::object(py::int_(json[name].get<int64_t>()))
                                                           : py::object(py::float_(value));
  return result;
}

py::dict state_fields(const train::TrainerState& state, size_t first_line) {
  py::list lines;
  for (size_t i = first_line; i < state.log_history.size(); ++i) lines.append(metrics_dict(state.log_history[i]));
  py::dict fields;
  fields["epoch"] = py::cast(state.epoch);
  fields["global_step"] = state.global_step;
  fields["max_steps"] = state.max_steps;
  fields["logging_steps"] = state.logging_steps;
  fields["eval_steps"] = state.eval_steps;
  fields["save_steps"] = state.save_steps;
  fields["train_batch_size"] = py::cast(state.train_batch_size);
  fields["num_train_epochs"] = state.num_train_epochs;
  fields["num_input_tokens_seen"] = state.num_input_tokens_seen;
  fields["total_flos"] = state.total_flos;
  fields["best_metric"] = py::cast(state.best_metric);
  fields["best_global_step"] = py::cast(state.best_global_step);
  fields["best_model_checkpoint"] = py::cast(state.best_model_checkpoint);
  fields["is_local_process_zero"] = state.is_local_process_zero;
  fields["is_world_process_zero"] = state.is_world_process_zero;
  fields["new_lines"] = lines;
  return fields;
}

std::unique_ptr<train::TrainerCallback> make_python_callbacks(const py::object& bridge) {
  return std::make_unique<PythonCallbacks>(bridge);
}

}  // namespace megalith::python
