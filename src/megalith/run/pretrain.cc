#include "megalith/run/pretrain.h"

#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/config/derive.h"
#include "megalith/config/saved_model.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/data_settings.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Raises the flag that the trainer looks at: it asks all ranks in the same step. The clock runs from its making.
class ExitWatch : public train::TrainerCallback {
 public:
  ExitWatch(RunContext& run, train::StopFlag& flag, Clock::time_point start) : run_(run), flag_(flag), start_(start) {}

  void on_optimizer_step(train::TrainerEvent& event) override {
    const auto limit = run_.args().run.exit_duration_mins;
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - start_;
    const bool too_long = limit && minutes.count() > static_cast<double>(*limit);
    if (too_long || run_.stop_requested() || is_terminated(event.state.global_step + 1)) flag_.request();
  }

 private:
  bool is_terminated(int64_t iteration) const {
    const std::optional<Autoresume>& service = run_.autoresume();
    return service && iteration % service->interval == 0 && service->termination_requested();
  }

  RunContext& run_;
  train::StopFlag& flag_;
  const Clock::time_point start_;
};

// What follows an evaluation: the next one gets other samples, and non-loss data find their way.
class AfterEvaluation : public train::TrainerCallback {
 public:
  AfterEvaluation(RunContext& run, model::VirtualModels& models, const PretrainFunctions& functions,
                  const train::ForwardStepObjective& objective, std::shared_ptr<EvaluationWindow> window)
      : run_(run), models_(models), functions_(functions), objective_(objective), window_(std::move(window)) {}

  std::optional<train::CallbackRecord> record() const override {
    return train::CallbackRecord{"AfterEvaluation", {}, {{"evaluations", static_cast<double>(evaluations_)}}};
  }
  void restore(const train::CallbackRecord& saved) override {
    const auto before = static_cast<int64_t>(saved.attributes.find("evaluations").value_or(0));
    for (; evaluations_ < before; ++evaluations_) window_->advance();
  }

  void on_evaluate(train::TrainerEvent& event) override {
    window_->advance();
    ++evaluations_;
    if (!functions_.process_non_loss_data) return;
    std::vector<at::Tensor> data;
    if (functions_.non_loss_data) data = functions_.non_loss_data(models_);
    if (run_.rank() != run_.world_size() - 1) return;
    functions_.process_non_loss_data(functions_.non_loss_data ? data : objective_.non_loss_data(),
                                     event.state.global_step, run_.tensorboard());
  }

 private:
  RunContext& run_;
  model::VirtualModels& models_;
  const PretrainFunctions& functions_;
  const train::ForwardStepObjective& objective_;
  const std::shared_ptr<EvaluationWindow> window_;
  int64_t evaluations_ = 0;
};

train::EvalData evaluation_of(std::shared_ptr<const data::Dataset> dataset, const data::Collator& collator) {
  return {.dataset = std::move(dataset), .collator = collator, .name = {}, .max_samples = {}};
}

void check_length(const config::RunConfig& run) {
  check<ConfigError>(run.max_steps > 0 || run.train_samples || run.skip_train,
                     "the run has no length; set train_iters or train_samples");
  check<ConfigError>(run.max_steps <= 0 || !run.train_samples,
                     "train_iters {} and train_samples {} are two lengths of one run; keep one", run.max_steps,
                     run.train_samples.value_or(0));
}

PretrainEnd end_of(const train::Trainer& trainer, const train::TrainOutput& output) {
  if (output.interrupted) return PretrainEnd::kStopped;
  const train::TrainerState& state = trainer.state();
  const bool early = state.global_step < state.max_steps;
  const int64_t interval = trainer.settings().length.exit_interval;
  return early && interval > 0 && state.global_step % interval == 0 ? PretrainEnd::kExitInterval
                                                                    : PretrainEnd::kFinished;
}

// A checkpoint's own folder, or the newest in the folder of a run. One without a manifest is named by whoever reads it.
std::optional<fs::path> checkpoint_in(const fs::path& folder) {
  if (checkpoint::has_manifest(folder)) return folder;
  if (const auto newest = checkpoint::latest_checkpoint(folder)) return newest;
  const auto all = checkpoint::list_checkpoints(folder);
  return all.empty() ? std::nullopt : std::optional(all.back().folder);
}

// Weights, and where to go on.
std::optional<train::ResumePoint> load_checkpoint(RunContext& run, const model::VirtualModels& models,
                                                  const LoadRequest& load) {
  if (!load.folder) return std::nullopt;
  const config::TrainingArguments& args = run.args();
  const auto problems = checkpoint::verify(*load.folder, run.context());
  check<DataError>(problems.empty(), "{} is broken: {}", load.folder->string(), list_in_words(problems, 8));
  train::load_checkpoint_weights(models, *load.folder, static_cast<uint64_t>(args.seeds.seed));
  if (load.weights_only) return std::nullopt;
  train::ResumePoint point =
      train::read_resume_point(*load.folder, trainer_settings(args, run.context().grid().shape()), run.context());
  point.state.global_step = args.checkpoint.override_iteration.value_or(point.state.global_step);
  return point;
}

// Everything between the providers and the trainer.
struct Prepared {
  train::TrainerSetup setup;
  std::optional<train::EvalData> test;
};

Prepared prepare(RunContext& run, model::VirtualModels& models, const PretrainFunctions& functions,
                 const ProvidedDatasets& datasets) {
  const config::TrainingArguments& args = run.args();
  const data::Collator collator(pretrain_collator_options(args), functions.collate);
  const int64_t evaluation = samples_of_evaluation(args, run.microbatches());
  auto objective = std::make_unique<train::ForwardStepObjective>(
      train::ForwardStepObjective::Settings{.forward_step = functions.forward_step,
                                            .report_keys = functions.report_keys,
                                            .extra_keys = functions.extra_keys,
                                            .perplexity = functions.perplexity,
                                            .per_token = args.ddp.calculate_per_token_loss});
  Prepared prepared;
  train::TrainerSetup& setup = prepared.setup;
  if (datasets.train)
    setup.train_data = train::numbered_data(
        datasets.train, megatron_sampler(args.sampler, datasets.train->size(), static_cast<uint64_t>(args.seeds.seed)),
        collator);
  if (datasets.valid && evaluation > 0) {
    auto window = std::make_shared<EvaluationWindow>(datasets.valid, evaluation);
    setup.callbacks.push_back(std::make_unique<AfterEvaluation>(run, models, functions, *objective, window));
    setup.eval_data.push_back(evaluation_of(std::move(window), collator));
  }
  if (datasets.test && evaluation > 0)
    prepared.test = evaluation_of(std::make_shared<EvaluationWindow>(datasets.test, evaluation), collator);
  setup.objective = std::move(objective);
  setup.update_rule = functions.update_rule;
  setup.rates = functions.rates;
  setup.trace = &run.timers();
  setup.heartbeat = run.heartbeat();
  setup.rejection_tracker = run.rejection_tracker();
  if (run.tokenizer()) setup.assets = run.tokenizer()->folder;
  return prepared;
}

}  // namespace

ModelProvider gpt_model_provider(const RunContext& run) {
  const model::ModelConfig config = model_from_options(run.args(), run.required_tokenizer().vocabulary());
  return [config](RunContext& mine, const ChunkRequest& request) {
    parallel::ParallelContext& context = mine.context();
    return std::make_unique<model::GptModel>(config, model_options(mine.args(), context.device()), request.place,
                                             context);
  };
}

model::VirtualModels make_models(RunContext& run, const ModelProvider& provider) {
  const config::TrainingArguments& args = run.args();
  parallel::ParallelContext& context = run.context();
  check<ConfigError>(args.shape.num_layers.has_value(), "num_layers is not given; stages are cut by it");
  model::ModelConfig layers;
  layers.num_layers = *args.shape.num_layers;
  layers.mtp_layers = args.shape.mtp_num_layers.value_or(0);
  std::vector<std::unique_ptr<model::GptModel>> chunks;
  for (const model::ChunkPlace& place : model::chunk_places(config::split_request(args.pipeline), layers, context)) {
    const auto number = static_cast<int>(chunks.size());
    chunks.push_back(provider(run, {.pre_process = place.embedding,
                                    .post_process = place.head,
                                    .vp_stage = args.pipeline.vpp ? std::optional(number) : std::nullopt,
                                    .place = place}));
    check<ConfigError>(chunks.back() != nullptr, "the model provider has given nothing for chunk {}", number);
  }
  model::VirtualModels models(std::move(chunks), context);
  models.initialize_parameters(static_cast<uint64_t>(args.seeds.seed));
  int64_t elements = 0;
  for (const nn::Parameter* parameter : models.parameters()) elements += parameter->value.numel();
  if (context.place().dp_cp_rank == 0)
    log_info("number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}", context.place().tp_rank,
             context.place().pp_rank, elements);
  return models;
}

LoadRequest find_load(const config::TrainingArguments& args) {
  const config::CheckpointConfig& options = args.checkpoint;
  check<ConfigError>(!options.override_iteration || !options.finetune,
                     "override_ckpt_iteration and finetune, which begins at iteration 0, exclude each other");
  LoadRequest request{.folder = {}, .weights_only = options.finetune};
  if (args.save.load) {
    const fs::path folder = *args.save.load;
    if (options.ckpt_step)
      request.folder = folder / checkpoint::folder_name(*options.ckpt_step);
    else
      request.folder = checkpoint_in(folder);
    check<ConfigError>(request.folder || !options.exit_on_missing_checkpoint,
                       "load {} holds no checkpoint, and exit_on_missing_checkpoint is given", folder.string());
  }
  if (!request.folder && options.pretrained_checkpoint) {
    const fs::path folder = *options.pretrained_checkpoint;
    request = {checkpoint_in(folder), true};
    check<ConfigError>(request.folder.has_value(), "pretrained_checkpoint {} holds no checkpoint", folder.string());
  }
  if (request.folder) {
    const auto problems = checkpoint::problems_of_sizes(*request.folder, checkpoint::read_manifest(*request.folder));
    check<DataError>(problems.empty(), "{} is broken: {}", request.folder->string(), list_in_words(problems, 8));
  }
  return request;
}

PretrainOutput pretrain(RunContext& run, PretrainFunctions functions) {
  const auto start = Clock::now();
  const config::TrainingArguments& args = run.args();
  check_length(args.run);
  const LoadRequest load = find_load(args);
  if (args.save.load && !load.folder && run.rank() == 0)
    log_warning("load {} holds no checkpoint: the run starts from random weights", *args.save.load);

  model::VirtualModels models = make_models(run, functions.model ? functions.model : gpt_model_provider(run));
  std::optional<train::ResumePoint> resume = load_checkpoint(run, models, load);
  const ProvidedDatasets datasets = functions.datasets(run, samples_needed(args, run.microbatches()));
  check<ConfigError>(datasets.train || args.run.skip_train,
                     "there is no data to train on; give data_path, train_data_path or mock_data");
  train::StopFlag stop;
  Prepared prepared = prepare(run, models, functions, datasets);
  prepared.setup.resume = std::move(resume);
  prepared.setup.stop = &stop;
  prepared.setup.callbacks.push_back(std::make_unique<ExitWatch>(run, stop, start));
  if (functions.callbacks)
    for (auto& callback : functions.callbacks(run, models)) prepared.setup.callbacks.push_back(std::move(callback));
  const bool validates = !prepared.setup.eval_data.empty();
  train::TrainerSettings settings = trainer_settings(args, run.context().grid().shape());
  if (!validates) settings.eval.strategy = config::Interval::kNo;  // eval_interval is about data that is not there
  train::Trainer trainer(models, std::move(settings), std::move(prepared.setup));

  PretrainOutput output{.end = PretrainEnd::kSkipped, .training = {}, .state = {}, .validation = {}, .test = {}};
  if (!args.run.skip_train) {
    output.training = trainer.train();
    output.end = end_of(trainer, output.training);
    output.state = trainer.state();
    if (args.save.output_dir) trainer.save_model(*args.save.output_dir);
    const auto& service = run.autoresume();
    if (output.training.interrupted && service && service->request_resume && run.rank() == 0) service->request_resume();
    if (output.end != PretrainEnd::kFinished) return output;
  }
  if (validates) output.validation = trainer.evaluate();
  if (prepared.test) output.test = trainer.predict(*prepared.test).metrics;
  return output;
}

void take_checkpoint_arguments(config::ParseResult& parsed) {
  config::TrainingArguments& args = parsed.args;
  if (!args.checkpoint.use_checkpoint_args || !(args.save.load || args.checkpoint.pretrained_checkpoint)) return;
  const auto folder = find_load(args).folder;
  check<ConfigError>(folder.has_value(),
                     "use_checkpoint_args: load {} holds no checkpoint whose model could be taken; give a folder with"
                     " one, or describe the model (num_layers, hidden_size, …)",
                     args.save.load.value_or(""));
  const std::filesystem::path file = *folder / train::kArgumentsFile;
  check<DataError>(std::filesystem::is_regular_file(file), "use_checkpoint_args: {} is no file", file.string());
  const std::string words[]{file.string()};
  const config::TrainingArguments saved = config::parse_arguments(config::Dialect::kPretrain, words).args;
  check<ConfigError>(saved.shape.num_layers.has_value(),
                     "use_checkpoint_args: the run of {} took its model from a folder, not from options; describe the"
                     " model (num_layers, hidden_size, …), or continue with `megalith train`",
                     folder->string());
  const auto taken = config::take_model_of(saved, parsed.report, args);
  parsed.notes.push_back(
      fmt::format("use_checkpoint_args: of {}: {}", folder->string(),
                  taken.empty() ? "all options are given already" : fmt::format("{}", fmt::join(taken, ", "))));
}

}  // namespace megalith::run
