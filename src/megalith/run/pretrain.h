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

// The chunk that a model provider is asked for.
struct ChunkRequest {
  bool pre_process = true;        // it has the embedding
  bool post_process = true;       // it has the head
  std::optional<int> vp_stage{};  // its number among this rank's chunks; nothing without virtual stages
  model::ChunkPlace place;        // its layers, and the above once more
};

// All providers may use collectives: every rank calls them, in the same order.
using DatasetsProvider = std::function<ProvidedDatasets(RunContext& run, const data::PerSplit<int64_t>& samples)>;
using ModelProvider = std::function<std::unique_ptr<model::GptModel>(RunContext& run, const ChunkRequest& request)>;

// What a program brings; what it leaves out is that of pretrain_gpt: options say it.
struct PretrainFunctions {
  DatasetsProvider datasets = gpt_datasets;
  ModelProvider model{};  // empty: model_from_options. Weights are drawn by pretrain
  train::ForwardStep forward_step = train::gpt_forward_step;
  std::vector<std::string> report_keys{};  // see LossResult::report; losses end in "loss"
  std::vector<std::string> extra_keys{};   // extra tensors that forward_step reads (MicroBatch::extra)
  bool perplexity = true;                  // the loss is a mean of -log p
  data::CollateFunction collate{};         // a collator of one's own; empty for rows of seq_length
  // An optimizer and a schedule of the program's own: see train::TrainerSetup. Progress is counted in samples.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  optim::RateFunctions rates{};

  // After each evaluation. `non_loss_data` runs on every rank, with the model; without it the data are what the forward
  // steps of the last group of micro-batches have kept. `process_non_loss_data` gets them on the last rank.
  std::function<std::vector<at::Tensor>(model::VirtualModels& models)> non_loss_data{};
  std::function<void(std::span<const at::Tensor> data, int64_t iteration, const ScalarWriter& writer)>
      process_non_loss_data{};

  // Callbacks that watch the run, once the model is there.
  std::function<std::vector<std::unique_ptr<train::TrainerCallback>>(RunContext& run, model::VirtualModels& models)>
      callbacks{};
};

enum class PretrainEnd {
  kFinished,      // all iterations
  kExitInterval,  // at a multiple of exit_interval
  kStopped,       // duration, signal or autoresume
  kSkipped,       // skip_train
};

struct PretrainOutput {
  PretrainEnd end = PretrainEnd::kFinished;
  train::TrainOutput training;         // empty with kSkipped
  train::TrainerState state;           // where training has ended
  train::MetricList validation, test;  // of the end; empty without such data
};

// All ranks call it, after finish_mpu_init. Throws ConfigError, before work is spent, for a run without length, a model
// that the options cannot describe (model_from_options.h), or no training data.
PretrainOutput pretrain(RunContext& run, PretrainFunctions functions = {});

// The chunks of this rank from a provider, with fresh weights from the seed; says how many parameters they have.
model::VirtualModels make_models(RunContext& run, const ModelProvider& provider);
// The provider of pretrain_gpt: the model that the options describe. Throws ConfigError at once.
ModelProvider gpt_model_provider(const RunContext& run);

}  // namespace megalith::run
