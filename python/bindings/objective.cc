// Calls a Python loss for each micro-batch. The tensors are those of the library, without copies, and autograd
// continues through them: backward runs without the lock, which libtorch takes for nodes that Python defines.
#include "objective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::python {

namespace {

using train::MicrobatchLoss;

constexpr const char* kAllowed =
    "a tensor, the sum of the losses of this rank's tokens; or a dict with loss, count (what the sum is divided by,"
    " over all context-parallel ranks; the default is batch.loss_tokens) and metrics: {name: (sum, weight)}";

// Returns a scalar tensor.
at::Tensor scalar_of(py::handle value, const char* what) {
  const bool is_tensor = THPVariable_Check(value.ptr());
  check<ConfigError>(is_tensor, "the objective has returned a {} as {}; it must be {}",
                     py::str(py::type::of(value).attr("__name__")).cast<std::string>(), what, kAllowed);
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  check<ConfigError>(tensor.numel() == 1, "the objective has returned a tensor [{}] as {}; it must be a single number",
                     fmt::join(tensor.sizes(), ", "), what);
  return tensor.reshape({});
}

class PythonObjective : public train::Objective {
 public:
  explicit PythonObjective(SharedObject objective) : objective_(std::move(objective)) {
    const py::gil_scoped_acquire lock;
    const py::object object = object_of(objective_);
    extra_keys_ = object.attr("extra_keys").cast<std::vector<std::string>>();
    metrics_keys_ = object.attr("metrics_keys").cast<std::vector<std::string>>();
    has_perplexity_ = object.attr("has_perplexity").cast<bool>();
  }

  std::vector<std::string> metrics_keys(train::Phase /*phase*/) const override { return metrics_keys_; }
  std::vector<std::string> extra_keys() const override { return extra_keys_; }
  bool wants_correct(train::Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return has_perplexity_; }
  bool sums_token_losses() const override { return false; }

  MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      train::Phase phase) const override {
    const py::gil_scoped_acquire lock;
    const py::object result =
        object_of(objective_).attr("call")(output.token_losses, view_of(batch, output.token_losses, microbatch, phase));
    if (!py::isinstance<py::dict>(result)) return {.sum = scalar_of(result, "the loss"), .count = batch.loss_tokens};
    return loss_of(result.cast<py::dict>(), batch);
  }

 private:
  // Returns what a loss may look at, for megalith.objective.Batch.
  py::dict view_of(const data::MicroBatch& batch, const at::Tensor& losses, int microbatch, train::Phase phase) const {
    py::dict extras;
    for (const std::string& name : extra_keys_) extras[py::str(name)] = batch.extra(name, losses.device());
    py::dict view;
    if (batch.labels.defined()) view["labels"] = batch.labels.to(losses.device());
    view["extras"] = extras;
    view["loss_tokens"] = batch.loss_tokens;
    view["samples"] = batch.samples;
    view["cumulative_lengths"] = batch.layout.cumulative();
    view["microbatch"] = microbatch;
    view["training"] = phase == train::Phase::kTraining;
    return view;
  }

  MicrobatchLoss loss_of(const py::dict& result, const data::MicroBatch& batch) const {
    check<ConfigError>(result.contains("loss"), "the objective has returned a dict without \"loss\"; it must be {}",
                       kAllowed);
    MicrobatchLoss loss{.sum = scalar_of(result["loss"], "\"loss\""), .count = batch.loss_tokens};
    if (result.contains("count")) loss.count = result["count"].cast<int64_t>();
    if (!result.contains("metrics")) return loss;
    for (const auto& [key, value] : result["metrics"].cast<py::dict>()) {
      const auto name = key.cast<std::string>();
      check<ConfigError>(std::ranges::find(metrics_keys_, name) != metrics_keys_.end(),
                         "the objective has returned the metric \"{}\", which its metrics_keys does not announce; all"
                         " ranks need the names before the first step",
                         name);
      const auto [sum, weight] = value.cast<std::pair<py::object, double>>();
      loss.metrics.push_back({name, scalar_of(sum, "the sum of a metric").detach(), weight});
    }
    return loss;
  }

  const SharedObject objective_;
  std::vector<std::string> extra_keys_, metrics_keys_;
  bool has_perplexity_ = false;
};

}  // namespace

std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> python_objective(
    const py::object& objective) {
  return [shared = share(objective)](model::VirtualModels&) { return std::make_unique<PythonObjective>(shared); };
}

}  // namespace megalith::python
