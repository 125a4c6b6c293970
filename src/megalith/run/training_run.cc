#include "megalith/run/training_run.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/start_record.h"
#include "megalith/config/derive.h"
#include "megalith/config/documents.h"
#include "megalith/model/adapter.h"
#include "megalith/model/model_flops.h"
#include "megalith/observe/observers.h"
#include "megalith/observe/summary.h"
#include "megalith/observe/tensorboard.h"
#include "megalith/optim/rules/make_rule.h"
#include "megalith/plan/report.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/run_length.h"
#include "megalith/train/saving/shared_folder.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Once for all ranks, and in each one's log.
void say(const parallel::ParallelContext& context, const std::string& text) {
  if (context.rank() == 0) write_stderr(text);
  log_to_file("\n" + text);
}

// Logs of runs that did not begin do not count.
bool holds_nothing(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder),
                             [](const fs::directory_entry& entry) { return entry.path().filename() == "log"; });
}

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int64_t elements_of(const model::VirtualModels& models, bool trained_only) {
  const bool all = !trained_only || !model::has_adapter(models);
  int64_t elements = 0;
  for (const nn::Parameter* parameter : models.parameters())
    if (all || parameter->value.requires_grad()) elements += parameter->value.numel();
  return elements;
}

// Of an adapter, over all ranks.
std::string adapter_in_words(const model::VirtualModels& models) {
  if (!model::has_adapter(models)) return "";
  int64_t elements = 0;
  for (const auto& [tensor, dtype] : model::trained_tensors(models)) {
    int64_t product = 1;
    for (const int64_t size : tensor.shape) product *= size;
    elements += product;
  }
  return fmt::format("; an adapter of rank {} with {} trained parameters", model::adapter_of(models).rank, elements);
}

// What training keeps for `elements` parameters, `trained` of them, on a rank: the optimizer's states and, for trained
// parameters of 16 bits (an adapter's are not), their fp32 copies, over the ranks that share them.
std::vector<std::pair<std::string, double>> memory_of(const config::TrainingArguments& args, int64_t elements,
                                                      int64_t trained, int sharers) {
  const auto count = static_cast<double>(elements), learning = static_cast<double>(trained);
  const bool half = args.precision.bf16 || args.precision.fp16;
  const auto state_bytes = static_cast<double>(optim::make_rule(args.optimizer)->state_bytes());
  const double state = learning * (state_bytes + (half && trained == elements ? 4 : 0));
  return {{"parameters", count * (half ? 2 : 4)},
          {"gradients", learning * 4},
          {"optimizer", args.optimizer.use_distributed_optimizer ? state / sharers : state}};
}

// By the planner, or, where it does not know the run, of the state alone.
std::vector<std::pair<std::string, double>> planned_parts(const model::VirtualModels& models,
                                                          const config::TrainingArguments& args,
                                                          const DataSummary& data, int64_t elements, int64_t trained) {
  const parallel::ParallelContext& context = models.context();
  const layout::GridShape& shape = context.grid().shape();
  const auto memory = planned_memory(models.config(), args, shape.world_size, data.sequence_length,
                                     context.device().is_cuda() ? plan::Machinery{} : plan::Machinery::cpu());
  return memory ? plan::parts_of(*memory) : memory_of(args, elements, trained, shape.dp() * shape.cp);
}

std::string precision_of(const config::PrecisionConfig& precision) {
  return precision.bf16 ? "bf16" : precision.fp16 ? "fp16" : "fp32";
}

observe::StartSummary start_summary(const model::VirtualModels& models, const config::TrainingArguments& args,
                                    const DataSummary& data, const layout::BatchPlan& batch) {
  const parallel::ParallelContext& context = models.context();
  const model::ModelConfig& config = models.config();
  const int64_t mine = elements_of(models, false), trained = elements_of(models, true);
  const at::Tensor extremes = at::tensor({-mine, mine, trained}, at::kLong).to(context.device());
  context.world().world().all_reduce(extremes, comm::ReduceOp::kMax, "summary");
  const layout::GridShape& shape = context.grid().shape();
  const layout::MicrobatchCalculator batches(batch);
  observe::StartSummary summary;
  summary.model = fmt::format("{}, {} layers of width {}, vocabulary {}{}", config.family, config.num_layers,
                              config.hidden_size, config.vocab_size, adapter_in_words(models));
  summary.parameters = parameter_count(config);
  summary.fewest_on_rank = -extremes[0].item<int64_t>();
  summary.most_on_rank = extremes[1].item<int64_t>();
  summary.world_size = shape.world_size;
  summary.axes = {{"tp", shape.tp}, {"pp", shape.pp}, {"cp", shape.cp}, {"dp", shape.dp()}};
  summary.machinery = fmt::format("{} on {}, {}", context.world().backend(),
                                  context.device().is_cuda() ? "CUDA" : "CPU", precision_of(args.precision));
  summary.memory_bytes = planned_parts(models, args, data, summary.most_on_rank, extremes[2].item<int64_t>());
  summary.data = data.parts;
  const layout::BatchSizes sizes = batches.at(0);
  summary.micro_batch_size = batches.micro_batch_size();
  summary.microbatches = sizes.num_microbatches;
  summary.dp = shape.dp();
  summary.sequence_length = data.sequence_length;
  summary.max_steps = std::max<int64_t>(0, args.run.max_steps);
  if (args.run.max_steps <= 0) summary.epochs = args.run.num_train_epochs;
  summary.output_dir = args.save.output_dir.value_or("");
  return summary;
}

std::string rank_label(const parallel::ParallelContext& context) {
  const layout::RankPlace& place = context.place();
  return fmt::format("rank {}: tp {}, pp {}, dp {}", context.rank(), place.tp_rank, place.pp_rank, place.dp_rank);
}

observe::ObserverSetup observer_setup(const model::VirtualModels& models, const RunFlags& flags,
                                      const DataSummary& data, TraceRecorder& trace) {
  const parallel::ParallelContext& context = models.context();
  observe::ObserverSetup setup;
  setup.world = context.world().world();
  setup.waited_seconds = [&world = context.world()] { return world.waited_seconds(); };
  if (models.config().moe) setup.experts = std::make_shared<train::ExpertLoads>(models);
  setup.device = context.device();
  setup.trace = &trace;
  setup.progress.write = write_stderr;
  setup.progress.terminal = ::isatty(STDERR_FILENO) == 1;
  setup.progress.columns = terminal_columns();
  const int64_t length = std::max<int64_t>(1, data.sequence_length);
  setup.flops_per_token =
      layout::model_flops(model::flops_shape(models.config()), 1, length) / static_cast<double>(length);
  setup.peak_bytes = [device = context.device()] { return peak_bytes(device); };
  if (context.device().is_cuda()) setup.reserved_bytes = [device = context.device()] { return reserved_bytes(device); };
  setup.timing = flags.timing;
  if (flags.trace) setup.steps = observe::TraceSteps::parse(*flags.trace);
  setup.rank_label = rank_label(context);
  return setup;
}

observe::EndSummary end_summary(const observe::ReportSettings& reports, const train::TrainerState& state,
                                const train::TrainOutput& output, int64_t peak_bytes) {
  const double seconds = output.metrics.find("train_runtime").value_or(0);
  observe::EndSummary summary = observe::end_summary(reports, state, output.start_step, seconds);
  summary.tokens = state.num_input_tokens_seen - output.start_input_tokens;
  summary.peak_bytes = static_cast<double>(peak_bytes);
  std::erase_if(summary.files, [](const auto& file) { return file.first == "tensorboard"; });
  if (!reports.output_dir.empty()) summary.files.insert(summary.files.begin(), {"model", reports.output_dir.string()});
  return summary;
}

// The model has been evaluated as it is now.
bool is_evaluated(const config::TrainingArguments& args, const train::TrainerState& state) {
  if (args.eval.load_best_model_at_end) return false;  // another model than that of the last step
  const auto step = static_cast<double>(state.global_step);
  return std::ranges::any_of(state.log_history, [&](const train::MetricList& line) {
    return line.find("step") == step && line.find("eval_runtime");
  });
}

}  // namespace

std::vector<config::CommandOption> RunFlags::options() {
  return {{"dry_run", "check everything, print every effective option as YAML, and stop", &dry_run},
          {"force", "start although the planned memory is more than there is", &force},
          {"timing", "say what the phases of a step take", &timing},
          {"trace", "write a timeline of these steps (10-12) to output_dir/trace.json, for Perfetto", &trace},
          {"result_rejected_tracker_filename",
           "file that remembers rejected results over restarts; steps rejected twice are left out",
           &result_rejected_tracker_filename},
          {"help", "print the options", &help},
          {"topic", "with --help: only this topic", &topic}};
}

void apply_log_level(const config::LoggingConfig& logging) {
  if (logging.level != "passive") set_log_level(logging.level);
}

config::TrainingArguments resumed_arguments(config::TrainingArguments args, const comm::RankLaunch& launch) {
  if (launch.restarts == 0 || !args.save.output_dir) return args;
  const bool any = fs::is_directory(*args.save.output_dir) &&
                   std::ranges::any_of(fs::directory_iterator(*args.save.output_dir), [](const auto& entry) {
                     return entry.path().filename().string().starts_with("checkpoint-");
                   });
  if (any && args.dialect == config::Dialect::kPretrain) args.save.load = args.save.output_dir;
  if (any && args.dialect == config::Dialect::kTrain) args.save.resume_from_checkpoint = "auto";
  return args;
}

void check_output_folder(const config::SaveConfig& save, bool begins_run) {
  if (!save.output_dir) return;
  const fs::path folder = *save.output_dir;
  std::error_code error;
  fs::create_directories(folder, error);
  check<ConfigError>(!error && fs::is_directory(folder), "output_dir {} cannot be made: {}", folder.string(),
                     error ? error.message() : "there is a file of that name");
  check<ConfigError>(::access(folder.c_str(), W_OK | X_OK) == 0, "output_dir {} is not writable for this user",
                     folder.string());
  const bool continues = save.load || save.resume_from_checkpoint.value_or("false") != "false";
  check<ConfigError>(!begins_run || holds_nothing(folder) || save.overwrite_output_dir || continues,
                     "output_dir {} is not empty; choose another one, continue its run with resume_from_checkpoint"
                     " (pretrain: load), or set overwrite_output_dir to start anew in it",
                     folder.string());
}

BegunRun begin_run(const config::TrainingArguments& args, comm::RankLaunch launch, parallel::ParallelContext& context) {
  const comm::Rendezvous& place = context.world().place();
  comm::StartRecord* record = context.world().record();  // of torchrun's starts
  if (record != nullptr) {
    launch.restarts = record->continues(place.restarts) ? place.restarts : 0;
    if (place.rank == 0) {
      launch = record->complete(std::move(launch));
      launch.on_step = [record](const comm::Attempt& done) { record->note(done); };
    }
  }
  BegunRun run{launch, resumed_arguments(args, launch)};
  const config::SaveConfig& save = run.args.save;
  if (record != nullptr && place.rank == 0) {
    check_output_folder(save, launch.restarts == 0);
    record->begin();
  }
  if (!save.output_dir) return run;
  if (record != nullptr) context.world().world().barrier("output_dir");
  train::check_shared_folder(*save.output_dir, context.world());
  // From now on this rank keeps what it says.
  add_log_file(fs::path(*save.output_dir) / "log" / fmt::format("rank-{}.log", place.rank));
  return run;
}

void check_schedule(const config::TrainingArguments& args, int world_size) {
  const layout::MicrobatchCalculator batches(config::batch_plan(args, config::grid_shape(args, world_size).dp()));
  if (args.run.max_steps > 0) make_schedule(args, batches, args.run.max_steps);
  if (!config::trains(args.run)) return;
  const bool goes_on = args.save.resume_from_checkpoint || args.save.load;  // then the batch may have grown already
  train::check_pipeline_schedule(step_settings(args), batches, goes_on ? std::nullopt : std::optional<int64_t>(0));
}

std::vector<std::unique_ptr<train::TrainerCallback>> watch_run(const model::VirtualModels& models,
                                                               const config::TrainingArguments& args,
                                                               const RunFlags& flags, const DataSummary& data,
                                                               TraceRecorder& trace, const comm::RankLaunch& launch) {
  const parallel::ParallelContext& context = models.context();
  const auto summary = start_summary(models, args, data, config::batch_plan(args, context.grid().shape().dp()));
  say(context, observe::text_of(summary));
  observe::ObserverSetup setup = observer_setup(models, flags, data, trace);
  setup.launch = launch;
  return observe::make_observers(report_settings(args, context.grid().shape()), setup);
}

void say_end(const parallel::ParallelContext& context, const config::TrainingArguments& args,
             const train::TrainerState& state, const train::TrainOutput& output) {
  const at::Tensor peak = at::tensor({peak_bytes(context.device())}, at::kLong).to(context.device());
  context.world().world().all_reduce(peak, comm::ReduceOp::kMax, "summary");
  const observe::ReportSettings reports = report_settings(args, context.grid().shape());
  say(context, observe::text_of(end_summary(reports, state, output, peak.item<int64_t>())));
}

void run_training(model::VirtualModels& models, const config::TrainingArguments& args, const RunFlags& flags,
                  RunParts parts) {
  TraceRecorder trace;
  const WorldTrace traced(models.context().world(), trace);
  parts.setup.heartbeat = parts.launch.heartbeat;
  parts.setup.rejection_tracker = flags.result_rejected_tracker_filename.value_or("");
  for (auto& callback : watch_run(models, args, flags, parts.data, trace, parts.launch))
    parts.setup.callbacks.push_back(std::move(callback));
  parts.setup.trace = &trace;
  const bool evaluates = !parts.setup.eval_data.empty() && args.run.do_eval;
  train::Trainer trainer(models, trainer_settings(args, models.context().grid().shape()), std::move(parts.setup));
  if (config::trains(args.run)) {
    const train::TrainOutput output = trainer.train();
    if (args.save.output_dir) trainer.save_model(*args.save.output_dir);
    say_end(models.context(), args, trainer.state(), output);
    if (output.interrupted) return;
  }
  if (evaluates && !is_evaluated(args, trainer.state())) trainer.evaluate();
}

}  // namespace megalith::run
