// pretrain() assembles a Trainer the way Megatron-LM's function of that name does: model from a provider, weights from
// a checkpoint, datasets from a provider, then train, evaluate, test. The order matters: everything that can fail for a
// user's mistake (length, checkpoint, model) comes before data is read. Behavior that Trainer does not have is added as
// callbacks: reasons to stop early (ExitWatch) and the moving window of evaluations (AfterEvaluation).
#include "megalith/run/pretrain.h"

#include <chrono>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::run {

namespace {

using Clock = std::chrono::steady_clock;

// Raises the stop flag when a limit is reached on this rank; the trainer agrees on it with all ranks in the step that
// begins.
class ExitWatch : public train::TrainerCallback {
 public:
  ExitWatch(RunContext& run, train::StopFlag& flag, Clock::time_point start) : run_(run), flag_(flag), start_(start) {}

  void on_step_begin(train::TrainerEvent& event) override {
    const auto limit = run_.settings().pretrain.exit_minutes;
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - start_;
    const bool too_long = limit && minutes.count() > static_cast<double>(*limit);
    if (too_long || run_.stop_requested() || is_terminated(event.state.global_step + 1)) flag_.request();
  }

 private:
  // The cluster's autoresume service is asked every `interval` iterations only: the question may be a remote call.
  bool is_terminated(int64_t iteration) const {
    const std::optional<Autoresume>& service = run_.autoresume();
    return service && iteration % service->interval == 0 && service->termination_requested();
  }

  RunContext& run_;
  train::StopFlag& flag_;
  const Clock::time_point start_;
};

// After each evaluation, moves the window to other samples and passes on non-loss data. Its record in checkpoints makes
// a resumed run continue with the samples that come next.
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
    // The program collects data on all ranks, since that may communicate; the last rank, which has the losses, uses
    // it.
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

// The window already has the right number of samples, so no limit is set.
train::EvalData evaluation_of(std::shared_ptr<const data::Dataset> dataset, const data::Collator& collator) {
  return {.dataset = std::move(dataset), .collator = collator, .name = {}, .max_samples = {}};
}

// Reached by programs that fill in settings themselves; validate() has told users of the command line already.
void check_length(const RunSettings& run) {
  const train::LengthSettings& length = run.trainer.length;
  check<ConfigError>(length.max_steps > 0 || length.train_samples > 0 || run.pretrain.skip_train,
                     "the run has no length; set train_iters or train_samples");
  check<ConfigError>(length.max_steps == 0 || length.train_samples == 0,
                     "train_iters {} and train_samples {} are two lengths of one run; keep one", length.max_steps,
                     length.train_samples);
}

// Says why training ended. exit_interval counts only if the run was not over anyway.
PretrainEnd end_of(const train::Trainer& trainer, const train::TrainOutput& output) {
  if (output.interrupted) return PretrainEnd::kStopped;
  const train::TrainerState& state = trainer.state();
  const bool early = state.global_step < state.max_steps;
  const int64_t interval = trainer.settings().length.exit_interval;
  return early && interval > 0 && state.global_step % interval == 0 ? PretrainEnd::kExitInterval
                                                                    : PretrainEnd::kFinished;
}

// Returns the checkpoint to load, or its fallback if the content is damaged. Collective.
std::filesystem::path verified(RunContext& run, const LoadRequest& load) {
  const auto problems = checkpoint::verify(*load.folder, run.context());
  const std::string text = fmt::format("{} is broken: {}", load.folder->string(), list_in_words(problems, 8));
  if (problems.empty()) return *load.folder;
  check<DataError>(load.fallback.has_value(), "{}", text);
  if (run.rank() == 0) log_warning("{}; the run continues from {}", text, load.fallback->string());
  return verified(run, {.folder = load.fallback, .weights_only = load.weights_only});
}

// Loads the weights and returns the point to resume from; std::nullopt without a checkpoint or with weights only.
std::optional<train::ResumePoint> load_checkpoint(RunContext& run, const model::VirtualModels& models,
                                                  const LoadRequest& load) {
  if (!load.folder) return std::nullopt;
  const RunSettings& settings = run.settings();
  const std::filesystem::path folder = verified(run, load);
  train::load_checkpoint_weights(models, folder, settings.trainer.resume.keys);
  if (load.weights_only) return std::nullopt;
  train::ResumePoint point = train::read_resume_point(folder, settings.trainer, run.context());
  if (const auto counts_from = settings.pretrain.load.counts_from) point.state.global_step = *counts_from;
  return point;
}

// The results of prepare(): everything that the trainer needs, and the test data.
struct Prepared {
  train::TrainerSetup setup;
  std::optional<train::EvalData> test;
};

// Combines what the program provides with what the options say. Nothing here communicates between ranks.
Prepared prepare(RunContext& run, model::VirtualModels& models, const PretrainFunctions& functions,
                 const ProvidedDatasets& datasets) {
  const PretrainSettings& settings = run.settings().pretrain;
  const data::Collator collator(settings.rows, functions.collate);
  const int64_t evaluation = samples_of_evaluation(settings);
  auto objective = std::make_unique<train::ForwardStepObjective>(
      train::ForwardStepObjective::Settings{.forward_step = functions.forward_step,
                                            .report_keys = functions.report_keys,
                                            .extra_keys = functions.extra_keys,
                                            .perplexity = functions.perplexity,
                                            .per_token = run.settings().trainer.step.per_token_loss,
                                            .recordable = functions.recordable});
  Prepared prepared;
  train::TrainerSetup& setup = prepared.setup;
  if (datasets.train) {
    data::SamplerOptions order = settings.order;
    order.size = datasets.train->size();
    setup.train_data = train::numbered_data(datasets.train, order, collator);
  }
  // Each evaluation reads the next eval_iters batches of the validation set, as Megatron does, not the same ones
  // again.
  if (datasets.valid && evaluation > 0) {
    auto window = std::make_shared<EvaluationWindow>(datasets.valid, evaluation);
    setup.callbacks.push_back(std::make_unique<AfterEvaluation>(run, models, functions, *objective, window));
    setup.eval_data.push_back(evaluation_of(std::move(window), collator));
  }
  if (datasets.test && evaluation > 0)
    prepared.test = evaluation_of(std::make_shared<EvaluationWindow>(datasets.test, evaluation), collator);
  // A program's own forward step may read parameters as it likes.
  setup.updates_may_overlap = (functions.updates_may_overlap || !functions.callbacks) && objective->sums_token_losses();
  setup.objective = std::move(objective);
  setup.update_rule = functions.update_rule;
  setup.rates = functions.rates;
  setup.trace = &run.timers();
  setup.heartbeat = run.heartbeat();
  setup.rejection_tracker = run.rejection_tracker();
  setup.kept = run.kept();
  if (run.tokenizer()) setup.assets = run.tokenizer()->folder;
  const data::Dataset* prompts = datasets.valid ? datasets.valid.get() : datasets.train.get();
  const TextTools tools =
      run.tokenizer() ? TextTools{run.tokenizer()->tokenizer, run.tokenizer()->folder} : TextTools{};
  setup.text_sampler = make_text_sampler(run.settings().samples, tools, prompts);
  return prepared;
}

}  // namespace

ModelProvider gpt_model_provider(const RunContext& run) {
  const model::ModelConfig config = model_from_options(run.args(), run.required_tokenizer().vocabulary());
  return [config](RunContext& mine, const ChunkRequest& request) {
    parallel::ParallelContext& context = mine.context();
    const model::ModelSettings settings = settings_on(mine.settings().model, context.device());
    return std::make_unique<model::GptModel>(config, settings.options, request.place, context);
  };
}

// Only the number of layers is known here: the provider alone knows what kind of model it makes.
model::VirtualModels make_models(RunContext& run, const ModelProvider& provider) {
  const RunSettings& settings = run.settings();
  parallel::ParallelContext& context = run.context();
  check<ConfigError>(settings.pretrain.num_layers > 0, "num_layers is not given; stages are cut by it");
  model::ModelConfig layers;
  layers.num_layers = settings.pretrain.num_layers;
  layers.mtp_layers = settings.pretrain.mtp_layers;
  std::vector<std::unique_ptr<model::GptModel>> chunks;
  for (const model::ChunkPlace& place : model::chunk_places(settings.model.stages, layers, context)) {
    const auto number = static_cast<int>(chunks.size());
    chunks.push_back(provider(run, {.pre_process = place.embedding,
                                    .post_process = place.head,
                                    .vp_stage = settings.model.stages.vpp ? std::optional(number) : std::nullopt,
                                    .place = place}));
    check<ConfigError>(chunks.back() != nullptr, "the model provider returned nullptr for chunk {}", number);
  }
  // Initialized as a whole, so that tied and replicated parameters agree between ranks; the seed and not the layout
  // decides about the values.
  model::VirtualModels models(std::move(chunks), context);
  models.initialize_parameters(settings.model.seed);
  int64_t elements = 0;
  for (const nn::Parameter* parameter : models.parameters()) elements += parameter->value.numel();
  // Megatron's line, once for each part of the model.
  if (context.place().dp_cp_rank == 0)
    log_info("number of parameters on (tensor, pipeline) model parallel rank ({}, {}): {}", context.place().tp_rank,
             context.place().pp_rank, elements);
  return models;
}

PretrainOutput pretrain(RunContext& run, PretrainFunctions functions) {
  const auto start = Clock::now();
  const RunSettings& settings = run.settings();
  const bool trains = !settings.pretrain.skip_train;
  check_length(settings);
  const LoadRequest load = find_load(settings.pretrain.load, run.rank() == 0);
  if (const auto& folder = settings.pretrain.load.folder; folder && !load.folder && run.rank() == 0)
    log_warning("load {} holds no checkpoint: the run starts from random weights", folder->string());

  model::VirtualModels models = make_models(run, functions.model ? functions.model : gpt_model_provider(run));
  std::optional<train::ResumePoint> resume = load_checkpoint(run, models, load);
  const ProvidedDatasets datasets = functions.datasets(run, samples_needed(settings, run.microbatches()));
  check<ConfigError>(datasets.train || !trains,
                     "there is no data to train on; give data_path, train_data_path or mock_data");
  // The trainer holds references to models, flag and callbacks, all of which outlive it here.
  train::StopFlag stop;
  Prepared prepared = prepare(run, models, functions, datasets);
  prepared.setup.resume = std::move(resume);
  prepared.setup.stop = &stop;
  prepared.setup.callbacks.push_back(std::make_unique<ExitWatch>(run, stop, start));
  if (functions.callbacks)
    for (auto& callback : functions.callbacks(run, models)) prepared.setup.callbacks.push_back(std::move(callback));
  const bool validates = !prepared.setup.eval_data.empty();
  train::TrainerSettings of_trainer = settings.trainer;
  if (!validates) of_trainer.eval.strategy = config::Interval::kNo;  // without data, eval_interval has no meaning
  train::Trainer trainer(models, std::move(of_trainer), std::move(prepared.setup));

  PretrainOutput output{.end = PretrainEnd::kSkipped, .training = {}, .state = {}, .validation = {}, .test = {}};
  if (trains) {
    output.training = trainer.train();
    output.end = end_of(trainer, output.training);
    output.state = trainer.state();
    if (!settings.output.folder.empty()) trainer.save_model(settings.output.folder);
    const auto& service = run.autoresume();
    if (output.training.interrupted && service && service->request_resume && run.rank() == 0) service->request_resume();
    // A run that was told to stop leaves at once; its allocation may end in seconds.
    if (output.end != PretrainEnd::kFinished) return output;
  }
  if (validates) output.validation = trainer.evaluate();
  if (prepared.test) output.test = trainer.predict(*prepared.test).metrics;
  return output;
}

}  // namespace megalith::run
