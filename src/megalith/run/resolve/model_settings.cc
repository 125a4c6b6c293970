// Converts options to ModelOptions (how a model is held and run) and to ModelOverrides (changes to config.json). An
// override that was not given keeps the value of config.json.
#include "megalith/run/resolve/model_settings.h"

#include <algorithm>

#include "megalith/config/derive.h"
#include "megalith/model/families/scores.h"

namespace megalith::run {

namespace {

// Sets the flag of one of Megatron's module names; the parser has rejected others.
void add_recomputed_module(const std::string& module, model::RecomputePlan& plan) {
  if (module == "core_attn") {
    plan.core_attention = true;
  } else if (module == "mlp") {
    plan.mlp = true;
  } else if (module == "mlp_act") {
    plan.mlp_activation = true;
  } else if (module == "layernorm") {
    plan.norms = true;
  } else if (module == "mla_up_proj") {
    plan.mla_up_proj = true;
  } else if (module == "moe") {
    plan.moe = true;
  }  // moe_act, shared_experts: moe_options
}

// gradient_checkpointing alone means full recomputation of every layer; a granularity takes precedence over it.
// Selective recomputation without modules means core attention, as in Megatron.
model::RecomputePlan recompute_plan(const config::RecomputeConfig& recompute) {
  using Layers = model::RecomputePlan::Layers;
  model::RecomputePlan plan;
  plan.moe = recompute.moe_layer_recompute;
  plan.split_over_tp = recompute.distribute_saved_activations;
  if (recompute.gradient_checkpointing && !recompute.granularity) {
    plan.layers = Layers::kUniform;
    return plan;
  }
  if (recompute.granularity == config::RecomputeGranularity::kFull) {
    plan.layers = recompute.method == config::RecomputeMethod::kBlock ? Layers::kBlock : Layers::kUniform;
    plan.num_layers = recompute.num_layers.value_or(1);
    return plan;
  }
  if (recompute.granularity != config::RecomputeGranularity::kSelective && !recompute.recompute_activations)
    return plan;
  plan.core_attention = recompute.modules.empty();
  for (const std::string& module : recompute.modules) add_recomputed_module(module, plan);
  return plan;
}

// Without a number, all layers but the last one: backward of that one comes at once.
model::OffloadPlan offload_plan(const config::TrainingArguments& args) {
  const config::RecomputeConfig& recompute = args.recompute;
  if (recompute.cpu_offloading_num_layers > 0) return {.num_layers = recompute.cpu_offloading_num_layers};
  return {.num_layers = recompute.cpu_offloading ? args.shape.num_layers.value_or(1) - 1 : 0};
}

// Returns whether a module is one of those that selective recomputation repeats.
bool is_recomputed(const config::RecomputeConfig& recompute, const char* module) {
  return recompute.granularity == config::RecomputeGranularity::kSelective &&
         std::ranges::find(recompute.modules, module) != recompute.modules.end();
}

// Options of the expert layers that do not change the model, only how it is computed.
nn::MoeOptions moe_options(const config::TrainingArguments& args) {
  using Dispatcher = nn::MoeOptions::Dispatcher;
  nn::MoeOptions options;
  options.dispatcher =
      args.moe.token_dispatcher == config::TokenDispatcher::kAllGather ? Dispatcher::kAllGather : Dispatcher::kAllToAll;
  options.overlap_shared = args.moe.shared_expert_overlap;
  options.fp8 = args.precision.fp8_experts;
  options.recompute_activation = is_recomputed(args.recompute, "moe_act");
  options.recompute_shared = is_recomputed(args.recompute, "shared_experts");
  return options;
}

// sinkhorn balances by its assignment, without a loss.
bool is_balance_loss(const std::string& type) { return type != "none" && type != "sinkhorn"; }

// Tokens over which the load is averaged: the micro-batch, one sequence, or the global batch.
nn::BalanceLoss::Kind balance_kind(const std::string& type) {
  using Kind = nn::BalanceLoss::Kind;
  return type == "aux_loss" ? Kind::kBatch : type == "seq_aux_loss" ? Kind::kSequence : Kind::kGlobal;
}

// Each type has a coefficient and vice versa: validate() requires it when both are given.
void set_balance_losses(const config::RouterConfig& given, model::RouterOverrides& overrides) {
  const std::vector<double>& coeffs = given.aux_loss_coeff;
  std::vector<std::string> types = given.load_balancing_type;
  if (types.empty() && coeffs.empty()) return;
  // A coefficient alone means the default type; a type alone keeps the coefficient of config.json.
  if (types.empty()) types = {"aux_loss"};
  overrides.sinkhorn = std::ranges::find(types, "sinkhorn") != types.end();
  overrides.losses.emplace();
  for (size_t i = 0; i < types.size(); ++i) {
    if (!is_balance_loss(types[i])) continue;
    std::optional<double> coeff;
    if (!coeffs.empty()) coeff = i < coeffs.size() ? coeffs[i] : 0;
    overrides.losses->push_back({balance_kind(types[i]), coeff});
  }
}

// Members without a value leave the router as config.json describes it.
model::RouterOverrides router_overrides(const config::TrainingArguments& args) {
  const config::RouterConfig& given = args.router;
  model::RouterOverrides overrides;
  set_balance_losses(given, overrides);
  overrides.z_coeff = given.z_loss_coeff;
  overrides.jitter = given.input_jitter_eps;
  overrides.bias_update_rate = given.bias_update_rate;
  // A bias that never moves is the same as none.
  if (!given.enable_expert_bias.value_or(true)) overrides.bias_update_rate = 0;
  if (given.dtype) overrides.dtype = *given.dtype == config::RouterDtype::kFp64 ? at::kDouble : at::kFloat;
  overrides.per_token_loss = args.ddp.calculate_per_token_loss;
  overrides.capacity_factor = args.moe.expert_capacity_factor;
  overrides.pad_to_capacity = args.moe.pad_expert_input_to_capacity.value_or(false);
  overrides.drop_by_position = args.moe.token_drop_policy == config::DropPolicy::kPosition;
  overrides.replay = args.moe.enable_routing_replay;
  return overrides;
}

// Rewards are single numbers; the head of stage cls may be described by the model's files.
model::ScoreOverride score_override(const config::TrainingArguments& args) {
  model::ScoreOverride scores;
  const config::ScoringConfig& given = args.scoring;
  if (given.num_labels) scores.num_labels = *given.num_labels;
  if (args.run.stage == config::Stage::kReward) scores.num_labels = 1;
  if (given.problem_type) scores.problem_type = config::choice_name(*given.problem_type);
  return scores;
}

// A head for scores is new, so it is trained with whatever else is.
std::vector<std::string> with_score_module(std::vector<std::string> modules, config::Stage stage) {
  const bool named = std::ranges::find(modules, model::kScoreModule) != modules.end();
  if (config::scores_sequences(stage) && !named) modules.emplace_back(model::kScoreModule);
  return modules;
}

}  // namespace

// Names of recipes are Transformer Engine's.
std::optional<ops::Fp8Recipe> fp8_recipe(const config::PrecisionConfig& precision) {
  if (!precision.fp8) return std::nullopt;
  const std::string name = precision.fp8_recipe.value_or("tensorwise");
  return ops::Fp8Recipe{
      .format = *precision.fp8 == config::Fp8Format::kHybrid ? ops::Fp8Format::kHybrid : ops::Fp8Format::kE4m3,
      .scaling = name == "delayed"     ? ops::Fp8Scaling::kDelayed
                 : name == "blockwise" ? ops::Fp8Scaling::kBlocks
                                       : ops::Fp8Scaling::kTensor,
      .history = precision.fp8_amax_history_len,
      .most_recent = precision.fp8_amax_compute_algo == "most_recent",
      .margin = precision.fp8_margin,
      .weight_gradients = precision.fp8_wgrad};
}

model::ModelSettings model_settings(const config::TrainingArguments& args, at::Device device) {
  return {.options = model_options(args, device),
          .overrides = model_overrides(args),
          .stages = config::split_request(args.pipeline),
          .seed = static_cast<uint64_t>(args.seeds.seed)};
}

namespace {

// Returns how the weights below an adapter are quantized; std::nullopt if they are not.
std::optional<ops::QuantizedFormat> quantized_format(const config::LoraConfig& lora) {
  if (!lora.quantization_bit) return std::nullopt;
  if (*lora.quantization_bit == 8) return ops::EightBitFormat{};
  const bool fp4 = lora.quantization_type == config::QuantizationType::kFp4;
  return ops::FourBitFormat{.kind = fp4 ? ops::FourBitKind::kFp4 : ops::FourBitKind::kNf4,
                            .double_quantization = lora.double_quantization};
}

}  // namespace

model::ModelOptions model_options(const config::TrainingArguments& args, at::Device device) {
  model::ModelOptions options;
  options.dtype = args.precision.bf16 ? at::kBFloat16 : args.precision.fp16 ? at::kHalf : at::kFloat;
  options.fp32_residual = args.precision.fp32_residual_connection;
  options.sequence_parallel = args.parallel.sequence_parallel;
  options.tp_overlap = args.parallel.tp_comm_overlap;
  options.tp_slices = args.parallel.tp_comm_overlap_slices.value_or(0);
  options.vocab_multiple = args.shape.make_vocab_size_divisible_by;
  if (args.fusion.cross_entropy_loss) options.loss_chunk = 1;  // options_on sets the size
  options.neftune_alpha = args.optimizer.neftune_noise_alpha.value_or(0);
  options.loss.label_smoothing = args.optimizer.label_smoothing_factor;
  options.fp8 = fp8_recipe(args.precision);
  options.quantization = quantized_format(args.lora);
  options.fp8_inside_only = args.precision.first_last_layers_bf16;
  options.fp8_head = args.precision.fp8_head;
  options.recompute = recompute_plan(args.recompute);
  options.offload = offload_plan(args);
  for (const std::string& name : args.parallel.cp_comm_type) options.context_modes.push_back(nn::context_mode(name));
  options.moe = moe_options(args);
  options.freeze = {.vision_tower = args.towers.freeze_vision_tower,
                    .projector = args.towers.freeze_multi_modal_projector,
                    .language_model = args.towers.freeze_language_model};
  if (args.dialect == config::Dialect::kTrain && args.run.finetuning_type == config::FinetuningType::kFreeze)
    options.trained_layers = model::LayerChoice{.layers = args.freeze.layers,
                                                .modules = args.freeze.modules,
                                                .extra = with_score_module(args.freeze.extra, args.run.stage),
                                                .spread = args.freeze.llama_pro};
  return options_on(std::move(options), device);
}

model::ModelOptions options_on(model::ModelOptions options, at::Device device) {
  options.device = device;
  // Rows of logits that exist at a time. The larger chunk fills a GPU; the smaller one stays in a CPU's caches longer.
  if (options.loss_chunk > 0) options.loss_chunk = device.is_cuda() ? 4096 : 1024;
  return options;
}

model::ModelOverrides model_overrides(const config::TrainingArguments& args) {
  model::ModelOverrides overrides;
  overrides.hidden_dropout = args.layer.hidden_dropout;
  overrides.attention_dropout = args.layer.attention_dropout;
  overrides.init_std = args.layer.init_method_std;
  overrides.mtp_layers = args.shape.mtp_num_layers;
  overrides.mtp_loss_factor = args.shape.mtp_loss_scaling_factor;
  overrides.router = router_overrides(args);
  if (config::scores_sequences(args.run.stage)) overrides.scores = score_override(args);
  return overrides;
}

model::ModelSettings reference_settings(model::ModelSettings policy) {
  policy.options.quantization.reset();
  policy.options.trained_layers.reset();
  return policy;
}

model::ModelSettings teacher_settings(model::ModelSettings student) {
  student = reference_settings(std::move(student));
  student.overrides = {.mtp_layers = 0, .towers = {.vision = false, .audio = false}};
  student.new_tokens.clear();
  return student;
}

}  // namespace megalith::run
