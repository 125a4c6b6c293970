// A forward step in Python sees a micro-batch as Megatron's data iterator gives it: tokens, labels, loss_mask and
// position_ids, [rows, tokens] where rows have one length and [tokens] otherwise; on a context-parallel rank, its
// slice. The chunk of the model is a function that runs without the interpreter's lock. What depends on one call of the
// forward step (the batch, the chunk, hidden states) may not be used after it: StepInput forgets it.
#include "pretrain.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "callbacks.h"
#include "dataset.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/run_report.h"
#include "megalith/run/run_words.h"
#include "megalith/train/saving/shared_folder.h"
#include "stop_on_signal.h"

namespace megalith::python {

PretrainRun::PretrainRun(std::shared_ptr<Rank> rank, const std::vector<std::string>& words, bool own_datasets)
    : rank_(std::move(rank)) {
  run::RunWords parsed;
  check<ConfigError>(parsed.read(config::Dialect::kPretrain, words, "megalith pretrain"),
                     "--help and --dry_run belong to the program: run_program(\"pretrain\", \"--help\")");
  check<ConfigError>(!parsed.launch().nproc,
                     "nproc is an option of the program; start ranks with torchrun, or with megalith.launch");
  run::RunRequest request = parsed.request();
  request.world = rank_->world(request.options.comm);
  request.begins_run = rank_->begins_run();
  request.own_datasets = own_datasets;
  plan_ = run::resolve(request);
  run_ = rank_->join(plan_.options, plan_.settings, {.stop = &stop_, .heartbeat = comm::Heartbeat(heartbeat_)});
  rank_->add(this);
}

PretrainRun::~PretrainRun() {
  close();
  rank_->remove(this);
}

run::PretrainOutput PretrainRun::pretrain(run::PretrainFunctions functions, bool handles_signals) {
  check<ConfigError>(run_ != nullptr, "the run is closed: shutdown_megatron() has been called");
  parallel::ParallelContext& context = run_->context();
  if (context.rank() == 0)
    for (const std::string& warning : plan_.warnings) log_warning("{}", warning);
  run::make_output_folder(plan_.settings.output);
  if (const auto& output = plan_.settings.output.folder; !output.empty())
    train::check_shared_folder(output, context.world());
  run::check_memory(plan_.settings, plan_.model.config, context);
  functions.callbacks = [own = functions.callbacks](run::RunContext& mine, model::VirtualModels& models) {
    const auto samples = run::samples_needed(mine.settings(), mine.microbatches());
    const run::DataSummary data{.parts = {{"train", fmt::format("{} samples", samples[0])}},
                                .sequence_length = mine.settings().pretrain.seq_length};
    auto callbacks = run::watch_run(models, mine.settings(), data, mine.timers(), comm::launch_from_env());
    if (own)
      for (auto& callback : own(mine, models)) callbacks.push_back(std::move(callback));
    return callbacks;
  };
  std::optional<StopOnSignal> signals;
  if (handles_signals) signals.emplace(stop_);
  received_signal_ = 0;
  const run::WorldTrace traced(context.world(), run_->timers());
  run::PretrainOutput output = run::pretrain(*run_, std::move(functions));
  if (signals) received_signal_ = signals->received();
  if (output.end != run::PretrainEnd::kSkipped)
    run::print_end(context, plan_.settings.reports, output.state, output.training);
  return output;
}

namespace {

// The input of one call of a forward step, for Python: gone when the call returns.
class StepInput {
 public:
  explicit StepInput(const train::ForwardStepInput& step, std::vector<std::string> extra_keys)
      : step_(&step), extra_keys_(std::move(extra_keys)) {}

  void end() { step_ = nullptr; }

  // Returns the batch as Megatron's data iterator yields it.
  py::dict batch() const {
    const data::MicroBatch& batch = step().batch;
    const at::Device device = device_of_chunk();
    py::dict result;
    const auto put = [&](const char* name, const at::Tensor& tensor) {
      result[name] = tensor.defined() ? py::cast(as_rows(tensor.to(device))) : py::none();
    };
    put("tokens", batch.ids);
    put("labels", batch.labels);
    put("loss_mask", batch.labels.defined() ? batch.labels.ne(data::kIgnoredLabel).to(at::kFloat) : at::Tensor());
    put("position_ids", batch.layout.positions(device));
    result["attention_mask"] = py::none();  // causal, and within the bounds of the sequences
    for (const std::string& name : extra_keys_) result[py::str(name)] = batch.extra(name, device);
    return result;
  }
  int64_t loss_tokens() const { return step().batch.loss_tokens; }
  bool pre_process() const { return step().chunk.place().embedding; }
  bool post_process() const { return step().chunk.place().head; }
  bool training() const { return step().phase == train::Phase::kTraining; }

  // Runs the chunk: the losses of the tokens where it has the head, logits there without `losses`, hidden states
  // elsewhere.
  at::Tensor forward(bool losses) const {
    const train::ForwardStepInput& step = this->step();
    model::ModelInput input = step.input;
    if (!losses) input.targets.reset();
    const py::gil_scoped_release unlocked;
    const at::Tensor output = step.chunk.forward(input);
    return step.chunk.place().head ? as_rows(output) : output;
  }

 private:
  const train::ForwardStepInput& step() const {
    check<ConfigError>(step_ != nullptr, "the model and the batch of a forward step cannot be used after it");
    return *step_;
  }
  at::Device device_of_chunk() const { return step().chunk.parameters().device(); }

  // Returns [t, …] as [rows, tokens, …] where all rows have one length.
  at::Tensor as_rows(const at::Tensor& tensor) const {
    const ops::SequenceLayout& layout = step_->batch.layout;
    if (!layout.uniform() || tensor.size(0) != layout.tokens()) return tensor;
    return tensor.unflatten(0, {-1, layout.longest()});
  }

  const train::ForwardStepInput* step_;
  const std::vector<std::string> extra_keys_;
};

at::Tensor tensor_in(const py::object& value, const char* what) {
  check<ConfigError>(THPVariable_Check(value.ptr()), "forward_step_func has returned a {} as {}; it must be a tensor",
                     py::str(py::type::of(value).attr("__name__")).cast<std::string>(), what);
  return THPVariable_Unpack(value.ptr());
}

// Megatron's loss functions count on their own slice of the tokens, and the library wants counts over all
// context-parallel ranks: adds up the number of tokens and the weights of reports, and divides means.
void count_over_slices(train::LossResult& result, const comm::Group& cp) {
  if (cp.size() == 1) return;
  std::vector<double> counts{static_cast<double>(result.num_tokens.value_or(0))};
  for (const auto& each : result.report) counts.push_back(each.weight);
  const at::Tensor total = at::tensor(counts, at::kDouble).to(cp.device());
  cp.all_reduce(total, comm::ReduceOp::kSum, "counts of a loss function");
  const at::Tensor found = total.cpu();
  const auto* values = found.const_data_ptr<double>();
  if (result.num_tokens)
    result.num_tokens = static_cast<int64_t>(values[0]);
  else
    result.loss = result.loss / cp.size();
  for (size_t i = 0; i < result.report.size(); ++i) result.report[i].weight = values[i + 1];
}

// Returns a loss function that calls `call`, a Python function from the output to (loss, number of tokens or None,
// {name: (sum, weight)}).
train::LossFunction python_loss(const py::object& call, const comm::Group& cp) {
  return [shared = share(call), cp](const at::Tensor& output) {
    train::LossResult result;
    {
      const py::gil_scoped_acquire lock;
      const auto [loss, tokens, report] =
          object_of(shared)(output).cast<std::tuple<py::object, std::optional<int64_t>, py::dict>>();
      result.loss = tensor_in(loss, "the loss");
      result.num_tokens = tokens;
      check<ConfigError>(result.loss.numel() == 1,
                         "the loss function has returned {} numbers as the loss; it must be one", result.loss.numel());
      result.loss = result.loss.reshape({});
      for (const auto& [name, value] : report) {
        const auto [sum, weight] = value.cast<std::pair<py::object, double>>();
        result.report.push_back({name.cast<std::string>(), tensor_in(sum, "a report").detach().reshape({}), weight});
      }
    }
    count_over_slices(result, cp);
    return result;
  };
}

// `bridge` is a megalith.pretraining.Bridge.
train::ForwardStep python_forward_step(const py::object& bridge, std::vector<std::string> extra_keys,
                                       const comm::Group& cp) {
  return [shared = share(bridge), extra_keys = std::move(extra_keys), cp](const train::ForwardStepInput& step) {
    const py::gil_scoped_acquire lock;
    const auto input = std::make_shared<StepInput>(step, extra_keys);
    struct Ends {
      StepInput& input;
      ~Ends() { input.end(); }
    } const ends{*input};
    const auto [output, loss] = object_of(shared).attr("step")(input).cast<std::pair<py::object, py::object>>();
    train::ForwardStepResult result{.output = tensor_in(output, "the output")};
    if (!loss.is_none()) result.loss = python_loss(loss, cp);
    return result;
  };
}

run::DatasetsProvider python_datasets(const py::object& provider) {
  return [shared = share(provider)](run::RunContext&, const data::PerSplit<int64_t>& samples) {
    const py::gil_scoped_acquire lock;
    const py::list wanted(py::cast(std::vector<int64_t>(samples.begin(), samples.end())));
    const auto given = object_of(shared)(wanted).cast<std::vector<py::object>>();
    check<ConfigError>(
        given.size() == 3,
        "train_valid_test_dataset_provider has returned {} datasets; it must return three, of which those"
        " that are not there are None",
        given.size());
    const auto dataset = [&](size_t i, const char* name) -> std::shared_ptr<const data::Dataset> {
      if (given[i].is_none()) return nullptr;
      return std::make_shared<const PythonDataset>(given[i], name, /*keeps_items=*/false);
    };
    return run::ProvidedDatasets{.train = dataset(0, "the training dataset"),
                                 .valid = dataset(1, "the validation dataset"),
                                 .test = dataset(2, "the test dataset")};
  };
}

const char* name_of(run::PretrainEnd end) {
  switch (end) {
    case run::PretrainEnd::kFinished:
      return "finished";
    case run::PretrainEnd::kExitInterval:
      return "exit_interval";
    case run::PretrainEnd::kStopped:
      return "stopped";
    case run::PretrainEnd::kSkipped:
      break;
  }
  return "skipped";
}

// Everything is given by `bridge`; see megalith.pretraining.Bridge.
py::dict pretrain(PretrainRun& run, const py::object& bridge, bool handles_signals) {
  run::PretrainFunctions functions;
  functions.report_keys = bridge.attr("report_keys").cast<std::vector<std::string>>();
  functions.extra_keys = bridge.attr("extra_keys").cast<std::vector<std::string>>();
  if (const py::object provider = bridge.attr("datasets"); !provider.is_none())
    functions.datasets = python_datasets(provider);
  if (!bridge.attr("forward_step").is_none()) {
    functions.forward_step = python_forward_step(bridge, functions.extra_keys, run.context().cp());
    functions.perplexity = bridge.attr("perplexity").cast<bool>();
  }
  if (const py::object callbacks = bridge.attr("callbacks"); py::len(callbacks.attr("wanted")) > 0)
    functions.callbacks = [shared = share(callbacks)](run::RunContext&, model::VirtualModels&) {
      const py::gil_scoped_acquire lock;
      std::vector<std::unique_ptr<train::TrainerCallback>> made;
      made.push_back(make_python_callbacks(object_of(shared)));
      return made;
    };
  if (!bridge.attr("check_model").is_none())
    functions.model = [shared = share(bridge)](run::RunContext& mine, const run::ChunkRequest& request) {
      {
        const py::gil_scoped_acquire lock;
        object_of(shared).attr("check_model")(request.pre_process, request.post_process, request.vp_stage);
      }
      return run::gpt_model_provider(mine)(mine, request);
    };
  run::PretrainOutput output;
  {
    const py::gil_scoped_release unlocked;
    output = run.pretrain(std::move(functions), handles_signals);
  }
  py::dict result;
  result["end"] = name_of(output.end);
  result["interrupted"] = output.training.interrupted;
  result["signal"] = run.received_signal();
  result["global_step"] = output.training.global_step;
  result["training_loss"] = output.training.training_loss;
  result["metrics"] = metrics_dict(output.training.metrics);
  result["validation"] = metrics_dict(output.validation);
  result["test"] = metrics_dict(output.test);
  return result;
}

}  // namespace

void bind_pretrain(py::module_& module) {
  py::class_<StepInput, std::shared_ptr<StepInput>>(module, "StepInput")
      .def("batch", &StepInput::batch)
      .def("forward", &StepInput::forward, py::arg("losses"))
      .def_property_readonly("loss_tokens", &StepInput::loss_tokens)
      .def_property_readonly("pre_process", &StepInput::pre_process)
      .def_property_readonly("post_process", &StepInput::post_process)
      .def_property_readonly("training", &StepInput::training);

  py::class_<PretrainRun, std::shared_ptr<PretrainRun>>(module, "PretrainRun")
      .def(py::init([](std::shared_ptr<Rank> rank, const std::vector<std::string>& words, bool own_datasets) {
             const py::gil_scoped_release unlocked;
             return std::make_shared<PretrainRun>(std::move(rank), words, own_datasets);
           }),
           py::arg("rank"), py::arg("words"), py::arg("own_datasets"))
      .def_property_readonly("options", [](const PretrainRun& self) { return options_dict(self.plan().options); })
      .def("pretrain", &pretrain, py::arg("bridge"), py::arg("handles_signals"));
}

}  // namespace megalith::python
