// pretrain: Megatron-LM's entry point, for programs that bring their own data, model or loss.
//
//   const auto run = initialize_megatron(words, {.allow_no_cuda = true});       // 1. arguments, groups, seeds
//   pretrain(*run, {.datasets = my_datasets, .model = my_chunk, .forward_step = my_step});
//   shutdown_megatron();                                                        // the ranks leave together
//
// 2. The model provider is called once for each chunk of this rank; optimizer and schedule are made around them.
// 3. The dataset provider gets the number of samples that the run needs.
// 4. Training, unless skip_train: the same loop as Trainer's. Then a last save point, evaluation and test.
//
// A run ends at train_iters (or train_samples), at a multiple of exit_interval, after exit_duration_in_mins on any
// rank, by InitializeOptions::stop on any rank, or when autoresume asks for it; in all cases the step is finished and
// saved. Only a run that has done all its iterations is evaluated and tested at the end, as in the reference.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/config/parser.h"
#include "megalith/run/pretrain_data.h"
#include "megalith/run/run_context.h"
#include "megalith/train/objectives/forward_step.h"
#include "megalith/train/trainer.h"

namespace megalith::run {

// The chunk that a model provider is to build.
struct ChunkRequest {
  bool pre_process = true;        // it has the embedding
  bool post_process = true;       // it has the head
  std::optional<int> vp_stage{};  // its number among this rank's chunks; std::nullopt without virtual stages
  model::ChunkPlace place;        // its layers, and the fields above again
};

// All providers may use collectives: every rank calls them, in the same order.
using DatasetsProvider = std::function<ProvidedDatasets(RunContext& run, const data::PerSplit<int64_t>& samples)>;
using ModelProvider = std::function<std::unique_ptr<model::GptModel>(RunContext& run, const ChunkRequest& request)>;

// The functions that a program provides. Those it leaves out behave as in pretrain_gpt, driven by options.
struct PretrainFunctions {
  DatasetsProvider datasets = gpt_datasets;
  ModelProvider model{};  // empty means model_from_options. pretrain initializes the weights
  train::ForwardStep forward_step = train::gpt_forward_step;
  std::vector<std::string> report_keys{};  // see LossResult::report; losses end in "loss"
  std::vector<std::string> extra_keys{};   // extra tensors that forward_step reads (MicroBatch::extra)
  bool perplexity = true;                  // the loss is a mean of -log p
  bool recordable = false;                 // CUDA graphs may replay forward_step: see train::Objective::recordable
  data::CollateFunction collate{};         // a collator of one's own; empty for rows of seq_length
  // The program's own optimizer and schedule: see train::TrainerSetup. Progress is counted in samples.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  optim::RateFunctions rates{};

  // Called after each evaluation. `non_loss_data` runs on every rank with the model; without it the data are those that
  // the forward steps of the last group of micro-batches have kept. `process_non_loss_data` gets them on the last rank.
  std::function<std::vector<at::Tensor>(model::VirtualModels& models)> non_loss_data{};
  std::function<void(std::span<const at::Tensor> data, int64_t iteration, const ScalarWriter& writer)>
      process_non_loss_data{};

  // Makes callbacks that watch the run; called once the model exists.
  std::function<std::vector<std::unique_ptr<train::TrainerCallback>>(RunContext& run, model::VirtualModels& models)>
      callbacks{};
  // Whether they read no parameters, except through functions of the trainer: train::TrainerSetup::updates_may_overlap.
  bool updates_may_overlap = false;
};

// The reason why a run has ended.
enum class PretrainEnd {
  kFinished,      // all iterations are done
  kExitInterval,  // at a multiple of exit_interval
  kStopped,       // duration, signal or autoresume
  kSkipped,       // skip_train
};

// The result of a run.
struct PretrainOutput {
  PretrainEnd end = PretrainEnd::kFinished;
  train::TrainOutput training;         // empty with kSkipped
  train::TrainerState state;           // state at the end of training
  train::MetricList validation, test;  // evaluations at the end; empty without such data
};

// Trains, evaluates and tests. All ranks call it, after finish_mpu_init. Throws ConfigError, before any work is done,
// for a run without length, a model that the options cannot describe (model_from_options.h), or missing training data.
PretrainOutput pretrain(RunContext& run, PretrainFunctions functions = {});

// Builds the chunks of this rank with a provider, initializes their weights from the seed, and logs the number of
// parameters.
model::VirtualModels make_models(RunContext& run, const ModelProvider& provider);
// Returns the provider of pretrain_gpt, which builds the model that the options describe. Throws ConfigError at once.
ModelProvider gpt_model_provider(const RunContext& run);

}  // namespace megalith::run
