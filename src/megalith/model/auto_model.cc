#include "megalith/model/auto_model.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "megalith/model/moe_arguments_internal.h"
#include "megalith/model/pretrained.h"

namespace megalith::model {

namespace {

RecomputePlan recompute_plan(const config::RecomputeConfig& recompute) {
  RecomputePlan plan;
  plan.moe = recompute.moe_layer_recompute;
  plan.split_over_tp = recompute.distribute_saved_activations;
  if (recompute.gradient_checkpointing && !recompute.granularity) {
    plan.layers = RecomputePlan::Layers::kUniform;
    return plan;
  }
  if (recompute.granularity == config::RecomputeGranularity::kFull) {
    plan.layers = recompute.method == config::RecomputeMethod::kBlock ? RecomputePlan::Layers::kBlock
                                                                      : RecomputePlan::Layers::kUniform;
    plan.num_layers = recompute.num_layers.value_or(1);
    return plan;
  }
  if (recompute.granularity != config::RecomputeGranularity::kSelective && !recompute.recompute_activations)
    return plan;
  plan.core_attention = recompute.modules.empty();
  for (const std::string& module : recompute.modules) {
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
    }  // moe_act, shared_experts: MoeOptions
  }
  return plan;
}

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
      .margin = precision.fp8_margin};
}

}  // namespace

ModelOptions ModelOptions::from(const config::TrainingArguments& args, at::Device device) {
  ModelOptions options;
  options.dtype = args.precision.bf16 ? at::kBFloat16 : args.precision.fp16 ? at::kHalf : at::kFloat;
  options.device = device;
  options.sequence_parallel = args.parallel.sequence_parallel;
  options.vocab_multiple = args.shape.make_vocab_size_divisible_by;
  if (args.fusion.cross_entropy_loss) options.loss_chunk = options.device.is_cuda() ? 4096 : 1024;
  options.fp8 = fp8_recipe(args.precision);
  options.fp8_inside_only = args.precision.first_last_layers_bf16;
  options.recompute = recompute_plan(args.recompute);
  for (const std::string& name : args.parallel.cp_comm_type) options.context_modes.push_back(nn::context_mode(name));
  options.moe = moe_options(args);
  return options;
}

ModelConfig with_arguments(ModelConfig config, const config::TrainingArguments& args) {
  config.hidden_dropout = args.layer.hidden_dropout.value_or(config.hidden_dropout);
  config.embedding_dropout = args.layer.hidden_dropout.value_or(config.embedding_dropout);
  config.attention_dropout = args.layer.attention_dropout.value_or(config.attention_dropout);
  config.init_std = args.layer.init_method_std.value_or(config.init_std);
  config.mtp_layers = args.shape.mtp_num_layers.value_or(static_cast<int>(config.mtp_layers));
  config.mtp_loss_factor = args.shape.mtp_loss_scaling_factor;
  if (config.moe) apply_arguments(config.moe->router, args);
  check<ConfigError>(config.mtp_layers == 0 || family_of(config).add_mtp_names != nullptr,
                     "mtp_num_layers {}: {} models have no multi-token-prediction layers; leave it out, or train a"
                     " deepseek_v3, glm4_moe or qwen3_next model",
                     config.mtp_layers, config.family);
  const auto found = problems(config);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "; "));
  return config;
}

VirtualModels AutoModel::from_pretrained(const std::string& path_or_name, const config::TrainingArguments& args,
                                         parallel::ParallelContext& context, std::optional<int64_t> vocab_size,
                                         const hf::HubEnvironment& env) {
  const auto folder = hf::find_model_folder(path_or_name, env);
  const ModelConfig in_files = read_pretrained_config(folder);
  ModelConfig config = with_arguments(in_files, args);
  config.vocab_size = vocab_size.value_or(config.vocab_size);
  VirtualModels models(config, ModelOptions::from(args, context.device()), chunk_places(args.pipeline, config, context),
                       context);
  load_weights(models, folder, in_files, static_cast<uint64_t>(args.seeds.seed));
  return models;
}

VirtualModels AutoModel::with_weights(ModelConfig config, const std::filesystem::path& weights,
                                      const config::TrainingArguments& args, parallel::ParallelContext& context) {
  const ModelConfig in_files = read_model_config(weights, config.own_family);
  config = with_arguments(std::move(config), args);
  config.vocab_size = in_files.vocab_size;
  VirtualModels models(config, ModelOptions::from(args, context.device()), chunk_places(args.pipeline, config, context),
                       context);
  load_weights(models, weights, in_files, static_cast<uint64_t>(args.seeds.seed));
  return models;
}

VirtualModels AutoModel::from_config(const ModelConfig& config, const config::TrainingArguments& args,
                                     parallel::ParallelContext& context) {
  const ModelConfig changed = with_arguments(config, args);
  VirtualModels models(changed, ModelOptions::from(args, context.device()),
                       chunk_places(args.pipeline, changed, context), context);
  models.initialize_parameters(static_cast<uint64_t>(args.seeds.seed));
  return models;
}

}  // namespace megalith::model
