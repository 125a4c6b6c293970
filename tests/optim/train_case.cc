#include "tests/optim/train_case.h"

#include <ATen/ATen.h>

#include "megalith/layout/rng_seeds.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/optim/finalize.h"

namespace megalith::testing {

namespace {

layout::GridShape grid_of(const Rank& rank, const TrainCase& how) {
  return {.world_size = rank.size, .tp = how.tp, .num_distributed_optimizer_instances = how.instances};
}

model::ModelOptions options_of(const TrainCase& how) {
  model::ModelOptions options = how.options;
  options.sequence_parallel = how.sequence_parallel;
  return options;
}

// Rows [first, first + count) as one micro-batch.
struct Rows {
  ops::SequenceLayout layout;
  at::Tensor ids, targets;
  int64_t tokens;  // that have a target
};
Rows rows(const TrainBatch& batch, int64_t first, int64_t count) {
  Rows r{.layout = ops::SequenceLayout::dense(count, batch.ids.size(1)), .ids = {}, .targets = {}, .tokens = 0};
  r.ids = batch.ids.narrow(0, first, count).reshape(-1);
  r.targets = model::shift_labels(batch.labels.narrow(0, first, count).reshape(-1), r.layout);
  r.tokens = r.targets.ge(0).sum().item<int64_t>();
  return r;
}

double sum_over(const comm::Group& group, double value) {
  const at::Tensor sum = at::full({1}, value, at::kDouble);
  group.all_reduce(sum);
  return sum.item<double>();
}

}  // namespace

std::string TrainCase::name() const {
  return fmt::format("tp {} dp {}{}{}{}{}{}{}", tp, dp, sequence_parallel ? " sp" : "",
                     ddp.use_distributed_optimizer ? " distributed" : "", ddp.overlap_grad_reduce ? " overlap" : "",
                     overlap_param_gather ? " overlap_param_gather" : "",
                     instances > 1 ? fmt::format(" {} instances", instances) : "",
                     optimizer.offload_fraction > 0 ? fmt::format(" offload {}", optimizer.offload_fraction) : "");
}

TrainBatch random_batch(int64_t sequences, int64_t length, int64_t vocab) {
  const at::Tensor n = at::arange(sequences * length, at::kLong);
  const at::Tensor ids = (n * 7919 + n.div(3, "floor") * 104729 + 11).remainder(vocab).view({sequences, length});
  return {ids, ids};
}

TrainingRank::TrainingRank(const Rank& rank, const std::filesystem::path& folder, const TrainCase& how)
    : how_(how),
      context_(rank.world, layout::RankGrid(grid_of(rank, how))),
      models_(model::read_model_config(folder), options_of(how),
              {model::ChunkPlace::whole(model::read_model_config(folder))}, context_) {
  context_.rng().seed(layout::seeds_for_base(1, context_.place().tp_rank, 0, 0));
  model::load_weights(models_, folder, models_.config(), 1);
  ddp_ = std::make_unique<optim::DistributedDataParallel>(models_.parameters(), how.ddp, context_);
  optimizer_ = std::make_unique<optim::Optimizer>(
      std::vector{ddp_.get()}, how.optimizer, context_,
      how.overlap_param_gather ? optim::ParamGather::kInForward : optim::ParamGather::kInStep);
  for (optim::ParamGroup& group : optimizer_->groups()) {
    group.lr = how.lr;
    group.weight_decay = how.weight_decay;
  }
  if (how.overlap_param_gather)
    models_[0].set_before_part([this](std::span<nn::Parameter* const> part) { ddp_->wait_for_params(part); });
}

double TrainingRank::accumulate(const TrainBatch& batch) {
  const comm::Group dp = context_.dp();
  const int64_t mine = batch.ids.size(0) / dp.size(), each = mine / how_.micro_batches;
  ddp_->zero_grad();
  double loss = 0;
  int64_t tokens = 0;
  for (int i = 0; i < how_.micro_batches; ++i) {
    ddp_->set_sync(i + 1 == how_.micro_batches);
    const Rows r = rows(batch, dp.rank() * mine + i * each, each);
    const at::Tensor losses = models_[0].forward({.layout = r.layout, .ids = r.ids, .targets = r.targets}).sum();
    (losses * scaler_.scale()).backward();
    loss += losses.item<double>();
    tokens += r.tokens;
  }
  optim::finalize_gradients({ddp_.get()}, context_, tokens);
  return sum_over(dp, loss) / sum_over(dp, static_cast<double>(tokens));
}

optim::StepResult TrainingRank::step() { return optimizer_->step(scaler_); }

double TrainingRank::loss(const TrainBatch& batch) {
  const at::NoGradGuard no_grad;
  const comm::Group dp = context_.dp();
  const int64_t mine = batch.ids.size(0) / dp.size();
  const Rows r = rows(batch, dp.rank() * mine, mine);
  const at::Tensor losses =
      models_[0].forward({.layout = r.layout, .ids = r.ids, .targets = r.targets, .training = false});
  return sum_over(dp, losses.sum().item<double>()) / sum_over(dp, static_cast<double>(r.tokens));
}

void run_training_ranks(const std::filesystem::path& folder, const TrainCase& how,
                        const std::function<void(const Rank&, TrainingRank&)>& body) {
  const auto run = [&](const Rank& rank) {
    TrainingRank training(rank, folder, how);
    body(rank, training);
  };
  if (how.gloo)
    run_gloo_ranks(how.tp * how.dp, run);
  else
    run_ranks(how.tp * how.dp, run);
}

TrainResult train(const std::filesystem::path& folder, const TrainBatch& batch, const TrainCase& how) {
  TrainResult result{{}, {}, whole_tensors(model::read_model_config(folder))};
  run_training_ranks(folder, how, [&](const Rank& rank, TrainingRank& training) {
    std::vector<double> losses, norms;
    for (int step = 0; step < how.steps; ++step) {
      losses.push_back(training.accumulate(batch));
      norms.push_back(training.step().grad_norm.value_or(-1));
    }
    losses.push_back(training.loss(batch));
    training.ddp().finish_param_gather();
    fill_in(result.weights, training.models(), [](const nn::Parameter& p) { return p.value.detach(); });
    if (rank.rank != 0) return;
    result.losses = losses;
    result.grad_norms = norms;
  });
  return result;
}

}  // namespace megalith::testing
