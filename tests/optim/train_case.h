// A few training steps of a golden model in some layout, by rank threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/optim/optimizer.h"
#include "tests/model/layout_case.h"

namespace megalith::testing {

// A layout, an optimizer and the length of a run.
struct TrainCase {
  int tp = 1, dp = 1;
  bool sequence_parallel = false;
  int instances = 1;  // distributed optimizer instances
  int micro_batches = 1;
  int steps = 5;
  double lr = 1e-3;
  double weight_decay = 0.1;
  bool gloo = false;  // sockets in place of shared memory
  model::ModelOptions options;
  optim::DdpSettings ddp{.per_token_loss = true};
  bool overlap_param_gather = false;
  optim::OptimizerSettings optimizer{
      .rule = std::make_shared<optim::AdamW>(ops::AdamSettings{.beta1 = 0.9, .beta2 = 0.95})};
  std::string name() const;
};

struct TrainBatch {
  at::Tensor ids, labels;  // int64 [b, s]; labels beside their tokens
};
// Deterministic tokens: every one is trained.
TrainBatch random_batch(int64_t sequences, int64_t length, int64_t vocab);

// One rank in the middle of a run.
class TrainingRank {
 public:
  TrainingRank(const Rank& rank, const std::filesystem::path& folder, const TrainCase& how);

  // Forward and backward of this rank's rows, finalized; the mean loss over all tokens of all ranks.
  double accumulate(const TrainBatch& batch);
  optim::StepResult step();
  // The loss without a gradient.
  double loss(const TrainBatch& batch);

  parallel::ParallelContext& context() { return context_; }
  model::VirtualModels& models() { return models_; }
  optim::DistributedDataParallel& ddp() { return *ddp_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::GradScaler& scaler() { return scaler_; }

 private:
  TrainCase how_;
  parallel::ParallelContext context_;
  model::VirtualModels models_;
  std::unique_ptr<optim::DistributedDataParallel> ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_ = optim::GradScaler::constant(1);
};

void run_training_ranks(const std::filesystem::path& folder, const TrainCase& how,
                        const std::function<void(const Rank&, TrainingRank&)>& body);

struct TrainResult {
  std::vector<double> losses;  // before each step, and at the end
  std::vector<double> grad_norms;
  NamedTensors weights;  // at the end, under the checkpoint's names
};
TrainResult train(const std::filesystem::path& folder, const TrainBatch& batch, const TrainCase& how);

}  // namespace megalith::testing
