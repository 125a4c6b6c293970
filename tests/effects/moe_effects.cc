// Options about experts and their routers, by what they do in a tiny run of a model with shared experts.
#include "tests/effects/effect.h"
#include "tests/effects/watched_run.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

WatchedRun run_of_experts(const TrainingArguments& args) {
  return watch_run(args, {.model = "glm4_moe", .dp = args.parallel.ep.value_or(1)});
}

std::string expert_numbers(const TrainingArguments& args) { return run_of_experts(args).numbers; }
std::string expert_messages(const TrainingArguments& args) { return run_of_experts(args).messages; }
std::string expert_work(const TrainingArguments& args) { return run_of_experts(args).operators; }
// Products of the shared expert while tokens are on their way to the others.
std::string computed_meanwhile(const TrainingArguments& args) { return run_of_experts(args).products_meanwhile; }

}  // namespace

Effects moe_effects() {
  const Words small = small_run();
  const Words balanced = small_run({"--moe_aux_loss_coeff=0.01"});
  const Words limited = small_run({"--moe_expert_capacity_factor=0.5"});
  const Words recomputed = small_run({"--recompute_granularity=full"});
  const Words exchanged = small_run({"--ep=2"});
  return {
      {"moe_aux_loss_coeff", small, {}, {"--moe_aux_loss_coeff=0.01"}, expert_numbers},
      {"moe_router_load_balancing_type",
       balanced,
       {},
       {"--moe_router_load_balancing_type=seq_aux_loss"},
       expert_numbers},
      {"moe_z_loss_coeff", small, {}, {"--moe_z_loss_coeff=0.001"}, expert_numbers},
      {"fp8_experts", small_run({"--bf16", "--fp8=hybrid"}), {}, {"--fp8_experts"}, expert_numbers},
      {"moe_router_dtype", small, {}, {"--moe_router_dtype=fp64"}, expert_numbers},
      {"moe_router_bias_update_rate", small, {}, {"--moe_router_bias_update_rate=10"}, expert_numbers},
      {"moe_input_jitter_eps", small, {}, {"--moe_input_jitter_eps=0.01"}, expert_numbers},
      {"moe_expert_capacity_factor", small, {}, {"--moe_expert_capacity_factor=0.5"}, expert_numbers},
      {"moe_pad_expert_input_to_capacity",
       small_run({"--moe_expert_capacity_factor=0.5", "--ep=2"}),
       {},
       {"--moe_pad_expert_input_to_capacity"},
       expert_work},
      {"moe_token_drop_policy", limited, {}, {"--moe_token_drop_policy=position"}, expert_numbers},
      {"moe_enable_routing_replay", recomputed, {}, {"--moe_enable_routing_replay"}, expert_work},
      {"moe_token_dispatcher_type",
       small_run({"--ep=2"}),
       {},
       {"--moe_token_dispatcher_type=allgather"},
       expert_messages},
      {"moe_shared_expert_overlap", exchanged, {}, {"--moe_shared_expert_overlap"}, computed_meanwhile},
      {"overlap_moe_expert_parallel_comm", exchanged, {}, {"--overlap_moe_expert_parallel_comm"}, computed_meanwhile},
      {"moe_layer_recompute", small, {}, {"--moe_layer_recompute"}, expert_work},
  };
}

}  // namespace megalith::testing
