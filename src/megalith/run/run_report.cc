// The first and the last words of a run: a summary of model, layout, memory and data at the start, and of results at
// the end. Rank 0 prints them, and every rank keeps them in its log. Numbers that differ between ranks (parameters,
// peaks) are reduced first, so all ranks must call these functions.
#include "megalith/run/run_report.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/terminal.h"
#include "megalith/comm/op/device_clock.h"
#include "megalith/model/adapter.h"
#include "megalith/model/fp8/fp8_share.h"
#include "megalith/model/model_flops.h"
#include "megalith/observe/energy/energy_meter.h"
#include "megalith/observe/observers.h"
#include "megalith/observe/summary.h"
#include "megalith/plan/report.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"

namespace megalith::run {

namespace {

// Prints a text once for all ranks, and into the log of each.
void print_and_log(const parallel::ParallelContext& context, const std::string& text, bool quiet = false) {
  if (context.rank() == 0 && !quiet) write_to_stderr(text);
  log_to_file(text);
}

// Returns the number of parameters on this rank; all of them are trained unless there is an adapter or a choice of
// layers.
int64_t elements_of(const model::VirtualModels& models, bool trained_only) {
  const bool all = !trained_only || (!model::has_adapter(models) && !models[0].options().trained_layers);
  int64_t elements = 0;
  for (const nn::Parameter* parameter : models.parameters())
    if (all || parameter->value.requires_grad()) elements += parameter->value.numel();
  return elements;
}

// Describes an adapter or the layers that alone are trained, with their parameters over all ranks; empty if all
// weights are trained.
std::string trained_in_words(const model::VirtualModels& models) {
  if (!model::has_adapter(models) && !models[0].options().trained_layers) return "";
  int64_t elements = 0;
  for (const model::TrainedTensor& trained : model::trained_tensors(models)) {
    if (trained.frozen) continue;
    int64_t product = 1;
    for (const int64_t size : trained.tensor.shape) product *= size;
    elements += product;
  }
  if (!model::has_adapter(models)) return fmt::format("; {} parameters of chosen layers are trained", elements);
  return fmt::format("; an adapter of rank {} with {} trained parameters", model::adapter_of(models).rank, elements);
}

// Returns the memory that training keeps for `elements` parameters on a rank, `trained` of which are trained. The
// optimizer's part has its states and, for trained parameters of 16 bits (an adapter's are not), their main parameters,
// divided by the ranks that share them.
std::vector<std::pair<std::string, double>> memory_of(const plan::RunShape& run, int64_t elements, int64_t trained,
                                                      int sharers) {
  const auto count = static_cast<double>(elements), learning = static_cast<double>(trained);
  const bool half = run.half() && !run.options.adapter;
  // Nearly all elements are those of matrices.
  const double states = run.muon ? run.muon->state_bytes : run.optimizer_state_bytes;
  const double state = learning * (states + (half ? run.main_parameter_bytes : 0));
  return {{"parameters", count * run.element_bytes()},
          {"gradients", learning * (half && run.gradients.grad_dtype != at::kFloat ? 2 : 4)},
          {"optimizer", run.gradients.use_distributed_optimizer ? state / sharers : state}};
}

// Returns the planned parts, or only those of the state for a run that the planner does not support.
std::vector<std::pair<std::string, double>> planned_parts(const model::VirtualModels& models, const RunSettings& run,
                                                          const DataSummary& data, int64_t elements, int64_t trained) {
  const parallel::ParallelContext& context = models.context();
  const layout::GridShape& shape = context.grid().shape();
  const auto memory = planned_memory(run, models.config(), data.sequence_length, context.device());
  return memory ? plan::parts_of(*memory) : memory_of(run.shape, elements, trained, shape.dp() * shape.cp);
}

// Returns the name that options use.
std::string precision_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

// Fills in the summary. All ranks call it: the extremes over ranks are reduced here.
observe::StartSummary start_summary(const model::VirtualModels& models, const RunSettings& run, const DataSummary& data,
                                    const std::optional<model::Fp8Share>& fp8) {
  const parallel::ParallelContext& context = models.context();
  const model::ModelConfig& config = models.config();
  const int64_t own_elements = elements_of(models, false), trained = elements_of(models, true);
  // One reduction for a minimum and two maxima: the minimum is the negated maximum of the negated numbers.
  const at::Tensor extremes = at::tensor({-own_elements, own_elements, trained}, at::kLong).to(context.device());
  context.world().world().all_reduce(extremes, comm::ReduceOp::kMax, "summary");
  const layout::GridShape& shape = context.grid().shape();
  const layout::MicrobatchCalculator batches(run.trainer.batch);
  observe::StartSummary summary;
  summary.model = fmt::format("{}, {} layers of width {}, vocabulary {}{}", config.family, config.num_layers,
                              config.hidden_size, config.vocab_size, trained_in_words(models));
  summary.parameters = parameter_count(config);
  summary.fewest_on_rank = -extremes[0].item<int64_t>();
  summary.most_on_rank = extremes[1].item<int64_t>();
  summary.world_size = shape.world_size;
  summary.axes = {{"tp", shape.tp}, {"pp", shape.pp}, {"cp", shape.cp}, {"dp", shape.dp()}};
  if (config.moe)
    summary.expert_axes = {{"etp", shape.expert_tp()}, {"ep", shape.ep}, {"pp", shape.pp}, {"edp", shape.edp()}};
  const char* device = context.device().is_cuda() ? "CUDA" : "CPU";
  summary.machinery = fmt::format("{}, {}", device, precision_of(run.model.options.dtype));
  if (shape.world_size > 1) summary.machinery = fmt::format("{} on {}", context.world().backend(), summary.machinery);
  if (fp8) {
    summary.fp8 = model::percent_text(fp8->in_fp8) + " of the FLOPs";
    for (const model::Fp8Share::Rest& rest : fp8->rest) summary.bf16.push_back(model::text_of(rest));
  }
  summary.memory_bytes = planned_parts(models, run, data, summary.most_on_rank, extremes[2].item<int64_t>());
  summary.data = data.parts;
  const layout::BatchSizes sizes = batches.at(0);
  summary.micro_batch_size = batches.micro_batch_size();
  summary.microbatches = sizes.num_microbatches;
  summary.dp = shape.dp();
  summary.sequence_length = data.sequence_length;
  summary.max_steps = run.trainer.length.max_steps;
  if (summary.max_steps == 0) summary.epochs = run.trainer.length.num_train_epochs;
  summary.output_dir = run.output.folder.string();
  return summary;
}

// Returns the share of fp8 in the run's FLOPs; nullopt without fp8.
std::optional<model::Fp8Share> share_in_fp8(const model::VirtualModels& models, const DataSummary& data) {
  const model::ModelOptions& options = models[0].options();
  if (!options.fp8) return std::nullopt;
  return model::fp8_share(models.config(), options, models.context().grid().shape(), data.sequence_length);
}

// Names a rank in traces: "rank 5: tp 1, pp 0, dp 2".
std::string rank_label(const parallel::ParallelContext& context) {
  const layout::RankPlace& place = context.place();
  return fmt::format("rank {}: tp {}, pp {}, dp {}", context.rank(), place.tp_rank, place.pp_rank, place.dp_rank);
}

// resolve has refused log_energy on a machine without GPUs.
std::function<double()> energy_of(at::Device device) {
  check<ConfigError>(device.is_cuda(),
                     "log_energy reads the counters of GPUs, but this rank runs on the CPU; leave it"
                     " out");
  return [meter = std::make_shared<observe::EnergyMeter>(device.index())] { return meter->joules(); };
}

// Returns a reader of the GPU's load, temperature and power; empty on the CPU and where the driver has no NVML.
std::function<observe::GpuReading()> gpu_of(at::Device device) {
  if (!device.is_cuda()) return {};
  std::shared_ptr<observe::GpuMonitor> monitor = observe::GpuMonitor::open(device.index());
  if (!monitor) return {};
  return [monitor] { return monitor->read(); };
}

// Gives the observers what they cannot know themselves: device memory, communication times, FLOPs per token.
observe::ObserverSetup observer_setup(const model::VirtualModels& models, const RunSwitches& switches,
                                      const DataSummary& data, TraceRecorder& trace) {
  const parallel::ParallelContext& context = models.context();
  observe::ObserverSetup setup;
  setup.world = context.world().world();
  setup.waited_seconds = [&world = context.world()] { return world.waited_seconds(); };
  if (models.config().moe) setup.experts = std::make_shared<train::ExpertLoads>(models);
  setup.device = context.device();
  setup.trace = &trace;
  setup.progress.write = write_to_stderr;
  setup.progress.quiet = switches.quiet;
  setup.progress.terminal = stderr_is_terminal();
  setup.progress.columns = terminal_columns;
  setup.progress.unicode = shows_unicode();
  const int64_t length = std::max<int64_t>(1, data.sequence_length);
  // Attention costs more per token in longer rows, so a row of the usual length is divided by its tokens.
  setup.flops_per_token =
      layout::model_flops(model::flops_shape(models.config()), 1, length) / static_cast<double>(length);
  setup.peak_bytes = [device = context.device()] { return peak_bytes(device); };
  if (context.device().is_cuda()) setup.reserved_bytes = [device = context.device()] { return reserved_bytes(device); };
  setup.gpu = gpu_of(context.device());
  setup.timing = switches.timing;
  setup.steps = switches.trace;
  setup.left_out_samples = data.left_out;
  setup.rank_label = rank_label(context);
  return setup;
}

observe::EndSummary end_summary(const observe::ReportSettings& reports, const train::TrainerState& state,
                                const train::TrainOutput& output, int64_t peak_bytes) {
  const double seconds = output.metrics.find("train_runtime").value_or(0);
  observe::EndSummary summary = observe::end_summary(reports, state, output.start_step, seconds);
  summary.tokens = output.work.tokens;
  summary.padding = output.work.padding;
  summary.peak_bytes = static_cast<double>(peak_bytes);
  // The closing lines name the model first; the TensorBoard folder was named at the start.
  std::erase_if(summary.files, [](const auto& file) { return file.first == "tensorboard"; });
  if (!reports.output_dir.empty()) summary.files.insert(summary.files.begin(), {"model", reports.output_dir.string()});
  return summary;
}

}  // namespace

WorldTrace::WorldTrace(comm::World& world, TraceRecorder& trace) : world_(world) {
  trace.set_device_clock(comm::make_device_clock(world.world().device()));
  world.set_trace(&trace);
}

std::vector<std::unique_ptr<train::TrainerCallback>> watch_run(const model::VirtualModels& models,
                                                               const RunSettings& run, const DataSummary& data,
                                                               TraceRecorder& trace, const comm::RankLaunch& launch) {
  const std::optional<model::Fp8Share> fp8 = share_in_fp8(models, data);
  print_and_log(models.context(), observe::text_of(start_summary(models, run, data, fp8)), run.switches.quiet);
  observe::ObserverSetup setup = observer_setup(models, run.switches, data, trace);
  if (fp8) setup.fp8_share = fp8->in_fp8;
  setup.launch = launch;
  if (run.reports.log_energy) setup.joules = energy_of(setup.device);
  return observe::make_observers(run.reports, setup);
}

void print_end(const parallel::ParallelContext& context, const observe::ReportSettings& reports,
               const train::TrainerState& state, const train::TrainOutput& output) {
  const at::Tensor peak = at::tensor({peak_bytes(context.device())}, at::kLong).to(context.device());
  context.world().world().all_reduce(peak, comm::ReduceOp::kMax, "summary");
  print_and_log(context, observe::text_of(end_summary(reports, state, output, peak.item<int64_t>())));
}

}  // namespace megalith::run
