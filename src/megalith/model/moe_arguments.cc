#include <algorithm>

#include "megalith/model/moe_arguments_internal.h"

namespace megalith::model {

namespace {

using nn::BalanceLoss;

// By the option's names; validate() has seen to it that there is one coefficient for each type, or none.
void apply_losses(nn::RouterShape& router, const config::RouterConfig& given) {
  std::vector<std::string> types = given.load_balancing_type;
  std::vector<double> coeffs = given.aux_loss_coeff;
  if (types.empty() && coeffs.empty()) return;
  if (types.empty()) types = {"aux_loss"};
  if (coeffs.empty()) coeffs.assign(types.size(), router.losses.empty() ? 0 : router.losses[0].coeff);
  router.losses.clear();
  for (size_t i = 0; i < types.size(); ++i) {
    using Kind = BalanceLoss::Kind;
    router.sinkhorn = router.sinkhorn || types[i] == "sinkhorn";
    const double coeff = i < coeffs.size() ? coeffs[i] : 0;
    if (coeff == 0 || types[i] == "none" || types[i] == "sinkhorn") continue;
    router.losses.push_back({types[i] == "aux_loss"       ? Kind::kBatch
                             : types[i] == "seq_aux_loss" ? Kind::kSequence
                                                          : Kind::kGlobal,
                             coeff});
  }
}

bool lists(const std::vector<std::string>& modules, const char* name) {
  return std::ranges::find(modules, name) != modules.end();
}

}  // namespace

void apply_arguments(nn::RouterShape& router, const config::TrainingArguments& args) {
  const config::RouterConfig& given = args.router;
  apply_losses(router, given);
  router.z_coeff = given.z_loss_coeff.value_or(router.z_coeff);
  router.jitter = given.input_jitter_eps.value_or(router.jitter);
  router.bias_update_rate = given.bias_update_rate.value_or(router.bias_update_rate);
  if (!given.enable_expert_bias.value_or(true)) router.bias_update_rate = 0;
  if (given.dtype) router.dtype = *given.dtype == config::RouterDtype::kFp64 ? at::kDouble : at::kFloat;
  router.per_token_loss = args.ddp.calculate_per_token_loss;
  router.capacity_factor = args.moe.expert_capacity_factor;
  router.pad_to_capacity = args.moe.pad_expert_input_to_capacity.value_or(false);
  router.drop_by_position = args.moe.token_drop_policy == config::DropPolicy::kPosition;
  router.replay = args.moe.enable_routing_replay;
}

nn::MoeOptions moe_options(const config::TrainingArguments& args) {
  nn::MoeOptions options;
  options.dispatcher = args.moe.token_dispatcher == config::TokenDispatcher::kAllGather
                           ? nn::MoeOptions::Dispatcher::kAllGather
                           : nn::MoeOptions::Dispatcher::kAllToAll;
  options.overlap_shared = args.moe.shared_expert_overlap;
  if (args.recompute.granularity != config::RecomputeGranularity::kSelective) return options;
  options.recompute_activation = lists(args.recompute.modules, "moe_act");
  options.recompute_shared = lists(args.recompute.modules, "shared_experts");
  return options;
}

}  // namespace megalith::model
