// The path of `megalith train` (run/run.cc), with the calls of a Python program in place of its fixed order: resolve
// and load in AutoModel.from_pretrained, open data and make the trainer in Trainer(…), train, export.
#include "session.h"

#include <fmt/format.h>

#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/run/load_model.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/run_report.h"
#include "megalith/run/run_words.h"
#include "megalith/run/samples/text_prompts.h"
#include "megalith/train/saving/save_model.h"
#include "megalith/train/saving/shared_folder.h"
#include "stop_on_signal.h"

namespace megalith::python {

namespace {

namespace fs = std::filesystem;

// Returns the options with another model.
config::TrainingArguments with_model(const Options& options, const std::string& folder_or_name) {
  config::TrainingArguments args = options.parsed.args;
  args.source.model_name_or_path = folder_or_name;
  return args;
}

run::RunPlan resolve_run(const Rank& rank, const Options& options, const std::string& folder_or_name,
                         bool brings_data) {
  return run::resolve({.work = run::Work::kTrain,
                       .options = with_model(options, folder_or_name),
                       .report = options.parsed.report,
                       .world = rank.world(options.parsed.args.comm),
                       .begins_run = rank.begins_run(),
                       .restarted = comm::launch_from_env().restarts > 0,
                       .own_datasets = brings_data});
}

std::shared_ptr<const std::vector<int32_t>> lengths_of(const data::Dataset& dataset) {
  auto lengths = std::make_shared<std::vector<int32_t>>();
  for (int64_t i = 0; i < dataset.size(); ++i) lengths->push_back(static_cast<int32_t>(dataset.tokens(i)));
  return lengths;
}

// Returns data in the order of the plan, or, as a stream, in its own.
train::TrainingData in_order(const run::DataPlan& plan, const OwnTrainerParts::Data& given) {
  const data::Collator collator(plan.collator, given.collate);
  if (given.stream) return train::streamed_data(given.stream, collator);
  data::SamplerOptions order = plan.order;
  order.size = given.dataset->size();
  if (order.by_length) order.lengths = lengths_of(*given.dataset);
  return train::numbered_data(given.dataset, order, collator);
}

std::string samples_of(const data::Dataset& dataset) {
  return fmt::format("{} sample{}", dataset.size(), dataset.size() == 1 ? "" : "s");
}

}  // namespace

void begin(const Options& options) {
  static const bool once = (keep_freed_memory(), true);
  static_cast<void>(once);
  options.parsed.report.check_runnable();
  run::apply_log_level(options.parsed.args.logging);
}

LoadedModel::LoadedModel(std::shared_ptr<Rank> rank, std::shared_ptr<const Options> options,
                         const std::string& folder_or_name)
    : rank_(std::move(rank)), options_(std::move(options)) {
  const config::DataConfig& data = options_->parsed.args.data;
  brings_data_ = data.dataset.empty() && data.eval_dataset.empty() && !data.tokenized_path;
  begin(*options_);
  plan_ = resolve_run(*rank_, *options_, folder_or_name, brings_data_);
  run_ = rank_->join(plan_.options, plan_.settings);
  parallel::ParallelContext& context = run_->context();
  if (context.rank() == 0)
    for (const std::string& warning : plan_.warnings) log_warning("{}", warning);
  run::make_output_folder(plan_.settings.output);
  const fs::path& output = plan_.settings.output.folder;
  if (!output.empty()) train::check_shared_folder(output, context.world());
  check_memory(plan_.settings, plan_.model.config, context);
  checkpoint_ = run::find_resume(plan_.settings.resume, output, context);
  models_.emplace(run::load_model(plan_.model, plan_.settings.model, context, checkpoint_));
  rank_->add(this);
}

LoadedModel::~LoadedModel() {
  close();
  rank_->remove(this);
}

void LoadedModel::close() {
  models_.reset();
  run_.reset();
}

model::VirtualModels& LoadedModel::models() {
  check<ConfigError>(models_.has_value(), "the model is closed: shutdown_megatron() has been called");
  return *models_;
}

void LoadedModel::save(const fs::path& folder) {
  train::save_model(complete_models(), plan_.settings.trainer.save, folder,
                    plan_.model.vocabulary.assets(plan_.model.folder));
}

model::VirtualModels& LoadedModel::complete_models() {
  for (RankTrainer* trainer : trainers_)
    if (train::OptimizedModel* optimized = trainer->optimized_model()) optimized->finish_param_gather();
  return models();
}

std::unique_ptr<model::WeightStream> LoadedModel::stream(const model::StreamOptions& options) {
  return std::make_unique<model::WeightStream>(complete_models(), options);
}

std::vector<model::WeightShard> LoadedModel::shards(model::WeightsOf of) {
  return model::weight_shards(complete_models(), of);
}

model::GivenNames LoadedModel::set_weights(const std::vector<model::GivenWeight>& given, bool strict,
                                           model::WeightsOf of) {
  model::GivenNames names = model::set_weights(complete_models(), given, strict, of);
  for (RankTrainer* trainer : trainers_)
    if (train::OptimizedModel* optimized = trainer->optimized_model()) optimized->reload_parameters();
  return names;
}

RankTrainer::RankTrainer(std::shared_ptr<LoadedModel> model, OwnTrainerParts parts)
    : model_(std::move(model)), plan_(model_->plan()) {
  model::VirtualModels& models = model_->models();
  parallel::ParallelContext& context = models.context();
  plan_.own.objective = parts.objective;
  plan_.data.collate = parts.file_collate;
  run::RunData data = open_data(parts);
  const std::string lengths = run::check_sample_lengths(data, plan_.data, plan_.model.config);
  if (context.rank() == 0 && !lengths.empty()) log_warning("{}", lengths);
  run::precompute_reference(plan_, context, data);
  const run::RunVocabulary& vocabulary = plan_.model.vocabulary;
  const data::Dataset* prompts = !data.eval.empty() ? data.eval.front().dataset.get()
                                 : data.train       ? data.train->dataset.get()
                                                    : nullptr;
  train::TrainerSetup setup{.train_data = std::move(data.train),
                            .eval_data = std::move(data.eval),
                            .objective = run::make_objective(plan_, models),
                            .updates_may_overlap = !parts.objective && !parts.callbacks,
                            .text_sampler = run::make_text_sampler(
                                plan_.settings.samples, {vocabulary.tokenizer, vocabulary.tokenizer_folder}, prompts),
                            .stop = &stop_,
                            .heartbeat = comm::Heartbeat(heartbeat_),
                            .assets = vocabulary.assets(plan_.model.folder),
                            .trace = &trace_};
  if (model_->checkpoint())
    setup.resume = train::read_resume_point(*model_->checkpoint(), plan_.settings.trainer, context);
  const run::DataSummary summary{std::move(data.described), plan_.data.request.data.cutoff_len};
  for (auto& callback : run::watch_run(models, plan_.settings, summary, trace_, comm::launch_from_env()))
    setup.callbacks.push_back(std::move(callback));
  if (parts.callbacks) setup.callbacks.push_back(std::move(parts.callbacks));
  trainer_ = std::make_unique<train::Trainer>(models, plan_.settings.trainer, std::move(setup));
  model_->rank().add(this);
  model_->add(this);
}

RankTrainer::~RankTrainer() {
  close();
  model_->remove(this);
  model_->rank().remove(this);
}

run::RunData RankTrainer::open_data(OwnTrainerParts& parts) const {
  const bool shows = model_->models().context().rank() == 0;
  if (!model_->brings_data()) {
    check<ConfigError>(!parts.train && parts.eval.empty(),
                       "train_dataset or eval_dataset is given, and the arguments name files as well (dataset,"
                       " eval_dataset or tokenized_path); keep one of them");
    return run::open_run_data(plan_.data, shows);
  }
  run::RunData data;
  if (parts.train) {
    check<ConfigError>(!parts.train->stream || plan_.settings.trainer.length.max_steps > 0,
                       "train_dataset has no length, so the arguments have to say how long the run is: set max_steps");
    check<ConfigError>(!parts.train->stream || !plan_.data.order.by_length,
                       "group_by_length needs the lengths of all samples, and train_dataset is a stream; leave it out");
    data.train = in_order(plan_.data, *parts.train);
    data.described.emplace_back("train", parts.train->stream ? "a stream" : samples_of(*parts.train->dataset));
  }
  for (const auto& [name, given] : parts.eval) {
    data.described.emplace_back(name.empty() ? "evaluation" : "evaluation " + name, samples_of(*given.dataset));
    data.eval.push_back(
        {.dataset = given.dataset, .collator = data::Collator(plan_.data.collator, given.collate), .name = name});
  }
  return data;
}

void RankTrainer::close() { trainer_.reset(); }

train::Trainer& RankTrainer::trainer() {
  check<ConfigError>(trainer_ != nullptr, "the trainer is closed: shutdown_megatron() has been called");
  return *trainer_;
}

train::TrainOutput RankTrainer::train(bool handles_signals) {
  train::Trainer& trainer = this->trainer();
  parallel::ParallelContext& context = model_->models().context();
  const run::WorldTrace traced(context.world(), trace_);
  std::optional<StopOnSignal> signals;
  if (handles_signals) signals.emplace(stop_);
  received_signal_ = 0;
  train::TrainOutput output;
  const auto facts = [&] { return run::memory_facts(plan_.settings, plan_.model.config, context); };
  run::explain_out_of_memory(plan_.settings.shape, facts, [&] { output = trainer.train(); });
  if (signals) received_signal_ = signals->received();
  run::print_end(context, plan_.settings.reports, trainer.state(), output);
  if (!output.last_save_error.empty()) log_warning("the last checkpoint is missing: {}", output.last_save_error);
  return output;
}

}  // namespace megalith::python
