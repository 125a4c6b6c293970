// Compares the gradient norm of a layout with one computed without any communication.
//
// Every gradient is a formula of its parameter's place in the model (norm_gradient), so each rank can compute the norm
// of all gradients by itself. Gradients are summed over replicas and divided by the tokens of all of them
// (calculate_per_token_loss), which is the longest path through finalize_gradients.
#include "megalith/train/faults/norm_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/optim/finalize.h"
#include "megalith/optim/grad_norm.h"

namespace megalith::train {

namespace {

// Small and not a power of two, so that buffers are padded and shards end inside a parameter.
constexpr int64_t kNormElements = 150;
constexpr int64_t kTokensOfReplica = 8;  // tokens of replica 1; replica r has r times as many

// The kinds of parameters, which are reduced in different ways.
enum class NormPart { kSplit, kReplicated, kTied, kExpert };

// Element i of the gradient on the ranks with these places: 0 for i = 0 and nowhere else, so that zeros can be counted.
double norm_gradient(NormPart part, int64_t stage, int64_t slice, int64_t i) {
  if (i == 0) return 0;
  return static_cast<double>((static_cast<int64_t>(part) * 5 + stage * 3 + slice * 7 + i) % 11 - 5) + 0.5;
}

// Adds up what every rank knows by the formula, without communication.
double sum_of_squares(NormPart part, int stages, int slices, double factor) {
  double sum = 0;
  for (int stage = 0; stage < stages; ++stage)
    for (int slice = 0; slice < slices; ++slice)
      for (int64_t i = 0; i < kNormElements; ++i) {
        const double gradient = norm_gradient(part, stage, slice, i) * factor;
        sum += gradient * gradient;
      }
  return sum;
}

// One parameter of each kind that this rank holds, with the norm and the zeros of the whole model.
class NormModel {
 public:
  explicit NormModel(const parallel::ParallelContext& context)
      : context_(context), set_(at::kBFloat16, context.device()) {
    const auto& place = context.place();
    const auto& grid = context.grid();
    add({.name = "split", .split_over_tp = true}, NormPart::kSplit, place.pp_rank, place.tp_rank);
    add({.name = "replicated", .partial_grad_over_tp = true, .replica = place.tp_rank}, NormPart::kReplicated,
        place.pp_rank, 0);
    if (tied() && place.in_embedding_group)
      add({.name = "tied",
           .role = place.pp_rank > 0 ? nn::ParameterRole::kTiedCopy : nn::ParameterRole::kTied,
           .split_over_tp = true},
          NormPart::kTied, 0, place.tp_rank);
    add({.name = "expert", .split_over_tp = true, .expert = true}, NormPart::kExpert, place.pp_rank,
        place.ep_rank * grid.etp() + place.etp_rank);
  }

  std::vector<nn::Parameter*> parameters() const {
    std::vector<nn::Parameter*> all;
    for (const auto& parameter : set_.all()) all.push_back(parameter.get());
    return all;
  }

  // Leaves gradients as backward does.
  void fill_gradients() const {
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < gradients_.size(); ++p) {
      nn::Parameter& parameter = *set_.all()[p];
      parameter.grad.main_grad.copy_(gradients_[p]);
      parameter.grad.stale = false;
    }
  }

  // Returns the tokens of all replicas; replica r (from 1) has r · kTokensOfReplica.
  double tokens() const {
    const double replicas = context_.grid().dp() * context_.grid().shape().cp;
    return kTokensOfReplica * replicas * (replicas + 1) / 2;
  }
  // Only the last stage knows its tokens.
  int64_t own_tokens() const {
    return context_.is_last_stage() ? kTokensOfReplica * (context_.place().dp_cp_rank + 1) : 0;
  }

  // Each term is multiplied by how often the gradient is added up: over replicas, and for replicated parameters over
  // tp, for tied ones over both stages.
  double norm() const {
    const auto& grid = context_.grid();
    const auto& shape = grid.shape();
    const double replicas = grid.dp() * shape.cp;
    double squares = sum_of_squares(NormPart::kSplit, shape.pp, shape.tp, replicas / tokens());
    squares += sum_of_squares(NormPart::kReplicated, shape.pp, 1, replicas * shape.tp / tokens());
    if (tied()) squares += sum_of_squares(NormPart::kTied, 1, shape.tp, 2 * replicas / tokens());
    squares += sum_of_squares(NormPart::kExpert, shape.pp, shape.ep * grid.etp(), grid.edp() / tokens());
    return std::sqrt(squares);
  }

  // One zero per parameter and slice, and tied ones once for both stages.
  int64_t zeros() const {
    const auto& grid = context_.grid();
    const auto& shape = grid.shape();
    return shape.pp * (shape.tp + 1 + shape.ep * grid.etp()) + (tied() ? shape.tp : 0);
  }

  bool parameters_are_unchanged() const {
    bool same = true;
    for (size_t p = 0; p < gradients_.size(); ++p)
      same = same && set_.all()[p]->value.detach().to(at::kFloat).equal(gradients_[p]);
    return same;
  }

 private:
  bool tied() const { return context_.grid().shape().pp > 1; }

  // Parameters take the values of their gradients, so that mixed-up parameters are noticed after gathering.
  void add(nn::ParameterSpec spec, NormPart part, int stage, int slice) {
    const at::NoGradGuard no_grad;
    const at::Tensor host = at::empty({kNormElements}, at::kFloat);
    for (int64_t i = 0; i < kNormElements; ++i)
      host.mutable_data_ptr<float>()[i] = static_cast<float>(norm_gradient(part, stage, slice, i));
    gradients_.push_back(host.to(context_.device()));
    nn::ParameterScope(set_).add(std::move(spec), {kNormElements}).value.copy_(gradients_.back());
  }

  const parallel::ParallelContext& context_;
  nn::ParameterSet set_;
  std::vector<at::Tensor> gradients_;  // by parameter; fp32
};

// Runs the end of a step on the real buffers, and compares norm, zeros and gathered parameters with the formula.
void check_norm_with(const parallel::ParallelContext& context, bool sharded, std::vector<std::string>& problems) {
  const NormModel model(context);
  const optim::DdpSettings settings{.use_distributed_optimizer = sharded, .per_token_loss = true};
  optim::DistributedDataParallel ddp(model.parameters(), settings, context);
  ddp.zero_grad();
  model.fill_gradients();
  optim::finalize_gradients({&ddp}, context, model.own_tokens());
  const std::vector<optim::StateBlock> blocks = optim::make_state({&ddp}, {});
  const optim::GradStats stats = optim::gradient_stats(blocks, sharded, /*count_zeros=*/true, context);
  const char* optimizer = sharded ? "with the distributed optimizer" : "without the distributed optimizer";
  if (!(std::abs(stats.norm - model.norm()) <= 1e-5 * model.norm()))
    problems.push_back(fmt::format("gradient norm {}, on rank {}: it is {:.9g} and should be {:.9g}", optimizer,
                                   context.rank(), stats.norm, model.norm()));
  if (stats.zeros != model.zeros())
    problems.push_back(fmt::format("zeros among the gradients {}, on rank {}: {} were counted and there are {}",
                                   optimizer, context.rank(), stats.zeros, model.zeros()));
  ddp.start_param_gather();
  ddp.finish_param_gather();
  if (!model.parameters_are_unchanged())
    problems.push_back(
        fmt::format("gathered parameters {}, on rank {}: they are not what was sent", optimizer, context.rank()));
}

}  // namespace

std::vector<std::string> check_gradient_norm(const parallel::ParallelContext& context) {
  std::vector<std::string> problems;
  for (const bool sharded : {false, true}) check_norm_with(context, sharded, problems);
  return problems;
}

}  // namespace megalith::train
