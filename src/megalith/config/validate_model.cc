// Rules for the shape of the model, experts and router, recomputation, precision, CUDA graphs and models that score
// sequences. Each `require` is one rule; its message names the options, their values, and what to change.
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/config/derive.h"
#include "megalith/config/option_table.h"
#include "megalith/config/validate_internal.h"

namespace megalith::config {
namespace {

// Heads and key/value heads must divide over tp; with fewer key/value heads than ranks, several ranks share one.
void check_shape(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const ModelShapeConfig& shape = args.shape;
  const int tp = args.parallel.tp.value_or(1);
  // Without a folder or a checkpoint the options are the only source of the shape.
  if (args.dialect == Dialect::kPretrain && context.needs_inputs && !args.checkpoint.use_checkpoint_args) {
    problems.require(shape.num_layers.has_value(),
                     "num_layers is not given; pretrain needs the number of decoder layers");
    problems.require(shape.hidden_size.has_value(), "hidden_size is not given; pretrain needs the width of the model");
    problems.require(shape.num_attention_heads.has_value(), "num_attention_heads is not given; pretrain needs it");
    problems.require(shape.seq_length.has_value(), "seq_length is not given; pretrain needs the length of a sample");
    problems.require(shape.max_position_embeddings.has_value(),
                     "max_position_embeddings is not given; set it to seq_length or more");
  }
  // Attention is split by heads: each tp rank computes whole ones.
  if (shape.num_attention_heads) {
    problems.require(
        *shape.num_attention_heads % tp == 0,
        "num_attention_heads {} is not a multiple of tensor_model_parallel_size {}; use a size that divides it",
        *shape.num_attention_heads, tp);
    problems.require(!shape.hidden_size || shape.kv_channels || *shape.hidden_size % *shape.num_attention_heads == 0,
                     "hidden_size {} is not a multiple of num_attention_heads {}; give kv_channels, the size of a head",
                     shape.hidden_size.value_or(0), *shape.num_attention_heads);
    problems.require(!shape.num_query_groups || *shape.num_attention_heads % *shape.num_query_groups == 0,
                     "num_attention_heads {} is not a multiple of num_query_groups {}", *shape.num_attention_heads,
                     shape.num_query_groups.value_or(1));
  }
  if (shape.num_query_groups)
    problems.require(*shape.num_query_groups % tp == 0 || tp % *shape.num_query_groups == 0,
                     "num_query_groups {} is neither a multiple nor a divisor of tensor_model_parallel_size {}",
                     *shape.num_query_groups, tp);
  problems.require(!args.mla.multi_latent_attention || !shape.group_query_attention,
                   "multi_latent_attention and group_query_attention exclude each other; keep one");
  const bool yarn = args.position.type == PositionEmbedding::kYarn;
  problems.require(shape.mtp_num_layers.value_or(0) == 0 || !yarn,
                   "mtp_num_layers works with position_embedding_type learned_absolute, rope or none, not yarn");
  problems.require(args.position.add_embedding || !args.position.type || args.position.type == PositionEmbedding::kRope,
                   "no_position_embedding has no effect here, and Megatron refuses it: say with"
                   " position_embedding_type which positions the model has (none, rope, learned_absolute)");
}

// With a model folder its config.json decides, so options that say otherwise would be silently ignored.
void check_folder_decides(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  if (args.dialect != Dialect::kTrain || !context.needs_inputs || !args.source.model_name_or_path) return;
  for (const Option& option : OptionTable::instance().options())
    problems.require(!option.describes_new_model || option.read(args) == option.train_default,
                     "{} describes a model from scratch, for `megalith pretrain`; here the config.json of"
                     " model_name_or_path decides. Leave it out, or change it there",
                     option.name);
}

// Experts divide over ep. What depends on the model's own config is checked when that has been read.
void check_experts(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const MoeConfig& moe = args.moe;
  const int ep = args.parallel.ep.value_or(1);
  if (moe.num_experts) {
    problems.require(*moe.num_experts % ep == 0, "num_experts {} is not a multiple of expert_model_parallel_size {}",
                     *moe.num_experts, ep);
  } else {
    problems.require(ep == 1 || args.dialect == Dialect::kTrain || !context.needs_inputs,
                     "expert_model_parallel_size {} needs num_experts", ep);
  }
  problems.require(!moe.shared_expert_overlap || moe.token_dispatcher == TokenDispatcher::kAllToAll,
                   "moe_shared_expert_overlap needs moe_token_dispatcher_type alltoall");
  const bool has_capacity = moe.expert_capacity_factor.value_or(-1) >= 0;
  problems.require(!moe.pad_expert_input_to_capacity.value_or(false) || has_capacity,
                   "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor");
  const auto& types = args.router.load_balancing_type;
  const bool sinkhorn = std::ranges::find(types, "sinkhorn") != types.end();
  problems.require(!has_capacity || !sinkhorn,
                   "moe_expert_capacity_factor works with aux_loss, seq_aux_loss, global_aux_loss or none as "
                   "moe_router_load_balancing_type, not with sinkhorn");
}

// A forward and a backward that run together must not wait for each other, and must not be recorded in one graph.
void check_expert_overlap(const TrainingArguments& args, Problems& problems) {
  if (!args.moe.overlap_expert_parallel_comm) return;
  const PipelineConfig& pipeline = args.pipeline;
  problems.require(args.moe.token_dispatcher == TokenDispatcher::kAllToAll,
                   "overlap_moe_expert_parallel_comm needs moe_token_dispatcher_type alltoall");
  const int pp = args.parallel.pp.value_or(1);
  const bool virtual_stages = pipeline.vpp.value_or(1) > 1 || pipeline.layers_per_virtual_stage || pipeline.layout;
  problems.require(
      pp == 1 || virtual_stages,
      "overlap_moe_expert_parallel_comm with pipeline_model_parallel_size {} needs virtual stages: in plain"
      " 1F1B the forward and the backward of a stage wait for each other through its neighbors. Set"
      " virtual_pipeline_model_parallel_size",
      pp);
  problems.require(args.fusion.cuda_graph_impl != "local",
                   "overlap_moe_expert_parallel_comm does not work with CUDA graphs, which hold forward and backward of"
                   " one micro-batch; leave out cuda_graph_impl");
  problems.require(
      !pipeline.defer_embedding_wgrad_compute,
      "overlap_moe_expert_parallel_comm does not work with defer_embedding_wgrad_compute: the passes of two"
      " micro-batches through the head run at the same time; leave out one of the two");
}

// Rules between the router's options. Optional values are those of a model folder, which has rules of its own.
void check_router(const TrainingArguments& args, Problems& problems) {
  const RouterConfig& router = args.router;
  const bool softmax = router.score_function.value_or(ScoreFunction::kSoftmax) == ScoreFunction::kSoftmax;
  // A softmax over one chosen expert is the constant 1, and the router would get no gradient.
  problems.require(router.topk != 1 || !softmax || router.pre_softmax.value_or(false) || !args.moe.num_experts,
                   "moe_router_topk 1 with softmax makes every weight 1; set moe_router_pre_softmax=true");
  problems.require(!router.topk || !args.moe.num_experts || *router.topk <= *args.moe.num_experts,
                   "moe_router_topk {} is more than num_experts {}", router.topk.value_or(0),
                   args.moe.num_experts.value_or(0));
  const auto& types = router.load_balancing_type;
  const auto& coefficients = router.aux_loss_coeff;
  const bool sinkhorn = std::ranges::find(types, "sinkhorn") != types.end();
  const bool any_loss = std::ranges::any_of(coefficients, [](double coefficient) { return coefficient > 0; });
  problems.require(!sinkhorn || !any_loss, "moe_router_load_balancing_type sinkhorn needs moe_aux_loss_coeff 0");
  problems.require(types.size() <= 1 || coefficients.size() == types.size(),
                   "moe_aux_loss_coeff has {} values for {} types of moe_router_load_balancing_type; give one each",
                   coefficients.size(), types.size());
  if (router.num_groups && args.moe.num_experts)
    problems.require(*args.moe.num_experts % *router.num_groups == 0,
                     "num_experts {} is not a multiple of moe_router_num_groups {}", *args.moe.num_experts,
                     *router.num_groups);
  problems.require(!router.group_topk || router.num_groups,
                   "moe_router_group_topk {} needs moe_router_num_groups, the number of groups",
                   router.group_topk.value_or(0));
  // The reference's rule.
  problems.require(!router.enable_expert_bias.value_or(false) || !softmax,
                   "moe_router_enable_expert_bias needs moe_router_score_function sigmoid");
  problems.require(!router.group_topk || !router.num_groups || *router.group_topk <= *router.num_groups,
                   "moe_router_group_topk {} is more than moe_router_num_groups {}", router.group_topk.value_or(0),
                   router.num_groups.value_or(0));
}

// Full and selective recomputation have different options; distributed storage only makes sense for whole layer inputs.
void check_recompute(const TrainingArguments& args, Problems& problems) {
  const RecomputeConfig& recompute = args.recompute;
  const bool full = recompute.granularity == RecomputeGranularity::kFull;
  if (recompute.granularity == RecomputeGranularity::kSelective)
    problems.require(!recompute.method && !recompute.num_layers,
                     "recompute_granularity selective takes recompute_modules; leave out recompute_method and "
                     "recompute_num_layers");
  problems.require(!recompute.recompute_activations || !full,
                   "recompute_activations means recompute_granularity selective, but full is given; keep one");
  if (recompute.distribute_saved_activations)
    problems.require(
        full && recompute.method && args.parallel.tp.value_or(1) > 1 && !args.parallel.sequence_parallel,
        "distribute_saved_activations needs tensor_model_parallel_size > 1, recompute_granularity full with "
        "recompute_method, and sequence_parallel off");
}

// The reference's rules. Recomputation frees the same activations in another way, a pipeline's stages hold those of
// several micro-batches, and a graph cannot free what it replays.
void check_offloading(const TrainingArguments& args, Problems& problems) {
  const RecomputeConfig& recompute = args.recompute;
  const int count = recompute.cpu_offloading_num_layers;
  if (!recompute.cpu_offloading && count == 0) return;
  problems.require(args.parallel.pp.value_or(1) == 1,
                   "cpu_offloading needs pipeline_model_parallel_size 1, not {}; leave out one of the two",
                   args.parallel.pp.value_or(1));
  problems.require(!recompute.granularity && !recompute.gradient_checkpointing && !recompute.recompute_activations &&
                       !recompute.moe_layer_recompute,
                   "cpu_offloading keeps activations that recomputation does without; leave out one of the two");
  problems.require(count > 0 || args.shape.num_layers,
                   "cpu_offloading without num_layers needs cpu_offloading_num_layers, the number of layers whose"
                   " activations go to the host");
  if (args.shape.num_layers)
    problems.require(count < *args.shape.num_layers,
                     "cpu_offloading_num_layers {} is not less than num_layers {}; backward of the last layer follows"
                     " its forward at once, so give at most {}",
                     count, *args.shape.num_layers, *args.shape.num_layers - 1);
  problems.require(args.fusion.cuda_graph_impl != "local",
                   "cpu_offloading does not work with CUDA graphs, which keep the memory of what they replay; leave out"
                   " one of the two");
}

// A rate for what is not trained, or for which there is no multiple of the learning rate, would be ignored silently.
void check_towers(const TrainingArguments& args, Problems& problems) {
  const TowerConfig& towers = args.towers;
  problems.require(args.media.image_min_pixels <= args.media.image_max_pixels,
                   "image_min_pixels {} is more than image_max_pixels {}", args.media.image_min_pixels,
                   args.media.image_max_pixels);
  problems.require(args.media.video_min_pixels <= args.media.video_max_pixels,
                   "video_min_pixels {} is more than video_max_pixels {}", args.media.video_min_pixels,
                   args.media.video_max_pixels);
  problems.require(!towers.freeze_vision_tower || !towers.freeze_multi_modal_projector || !towers.freeze_language_model,
                   "freeze_vision_tower, freeze_multi_modal_projector and freeze_language_model are all true, which"
                   " leaves nothing to train; set one of them to false");
  problems.require(
      !towers.vision_tower_lr || !towers.freeze_vision_tower,
      "vit_lr is a rate for the vision tower, which freeze_vision_tower keeps as it is; set that to false");
  problems.require(!towers.projector_lr || !towers.freeze_multi_modal_projector,
                   "aligner_lr is a rate for the merger, which freeze_multi_modal_projector keeps as it is; set that to"
                   " false");
  const bool own_rate = towers.vision_tower_lr || towers.projector_lr;
  problems.require(!own_rate || args.optimizer.learning_rate.value_or(0) > 0,
                   "vit_lr and aligner_lr follow the schedule of learning_rate, which must be positive");
  problems.require(!own_rate || !args.lora.loraplus_lr_ratio,
                   "loraplus_lr_ratio does not work with vit_lr and aligner_lr; leave out one or the other");
}

// Each fp8 option needs fp8 itself, and the delayed recipe owns the options about history.
void check_precision(const TrainingArguments& args, Problems& problems) {
  const PrecisionConfig& precision = args.precision;
  problems.require(!precision.bf16 || !precision.fp16, "bf16 and fp16 are both set; keep one");
  problems.require(!precision.fp8_param || precision.fp8, "fp8_param needs fp8; set fp8 to e4m3 or hybrid");
  problems.require(!precision.fp8_head || precision.fp8, "fp8_head needs fp8; set fp8 to e4m3 or hybrid");
  problems.require(!precision.fp8_experts || precision.fp8, "fp8_experts needs fp8; set fp8 to e4m3 or hybrid");
  problems.require(!precision.fp8_head || args.fusion.cross_entropy_loss,
                   "fp8_head needs cross_entropy_loss_fusion, which multiplies by the head chunk by chunk; set it, or"
                   " leave fp8_head out");
  problems.require(
      !precision.fp8_param || args.optimizer.use_distributed_optimizer,
      "fp8_param needs use_distributed_optimizer, whose fp32 parameters are the source of those in fp8; set"
      " it, or leave fp8_param out");
  const bool adapter = args.dialect == Dialect::kTrain && args.run.finetuning_type == FinetuningType::kLora;
  problems.require(!precision.fp8_param || !adapter,
                   "fp8_param keeps trained weights in fp8, but finetuning_type lora trains adapters and freezes the"
                   " weights; leave out one of the two");
  problems.require(precision.fp8_wgrad || precision.fp8, "no_fp8_wgrad needs fp8; set fp8 to e4m3 or hybrid");
  problems.require(!precision.fp8_recipe || precision.fp8, "fp8_recipe needs fp8; set fp8 to e4m3 or hybrid");
  const std::string recipe = fp8_recipe(args);
  const bool plain_history = precision.fp8_amax_history_len == 1 && precision.fp8_margin == 0 &&
                             precision.fp8_amax_compute_algo == "most_recent";
  problems.require(
      plain_history || (precision.fp8 && recipe == "delayed"),
      "fp8_amax_history_len, fp8_amax_compute_algo and fp8_margin belong to fp8 with the delayed recipe; set"
      " fp8 and fp8_recipe delayed, or leave them out");
  problems.require(!precision.fp8 || precision.bf16, "fp8 products need parameters in bf16; set bf16");
  problems.require(!precision.grad_reduce_in_bf16 || precision.bf16, "grad_reduce_in_bf16 needs bf16");
}

// Megatron can also capture parts of layers; here a graph holds the whole micro-batch or nothing.
void check_graphs(const FusionConfig& fusion, Problems& problems) {
  problems.require(fusion.cuda_graph_scope == std::vector<std::string>{"full"},
                   "cuda_graph_scope is {}; a graph holds forward and backward of a micro-batch: use full, or leave it"
                   " out",
                   fmt::join(fusion.cuda_graph_scope, ","));
}

// For the stages whose model scores sequences; their losses are not those of tokens.
void check_scoring_stage(const TrainingArguments& args, Problems& problems) {
  const ScoringConfig& scoring = args.scoring;
  const std::string_view stage = choice_name(args.run.stage);
  const bool rewards = args.run.stage == Stage::kReward;
  problems.require(!rewards || (scoring.num_labels.value_or(1) == 1 && !scoring.problem_type),
                   "stage rm trains one reward per answer; leave out num_labels and problem_type, or use stage cls");
  problems.require(rewards || scoring.center_rewards_coefficient == 0,
                   "center_rewards_coefficient belongs to stage rm, not {}", stage);
  problems.require(!args.data.packing.value_or(false) || (!rewards && args.data.neat_packing),
                   "packing does not work with stage {}: {}", stage,
                   rewards ? "rows are pairs" : "texts of a row would be read as one; use neat_packing");
  problems.require(!rewards || !args.data.sequence_packing,
                   "sequence_packing does not work with stage rm: rows are pairs");
  problems.require(!rewards || !args.ddp.calculate_per_token_loss,
                   "calculate_per_token_loss does not work with stage rm: its loss is a mean over pairs");
  problems.require(args.optimizer.label_smoothing_factor == 0,
                   "label_smoothing_factor does not work with stage {}, whose loss is not that of tokens", stage);
  const PreferenceConfig& preference = args.preference;
  problems.require(
      !preference.ref_model && preference.ref_model_adapters.empty() && !preference.precompute_ref_log_probs,
      "stage {} has no reference model; leave out ref_model, ref_model_adapters and"
      " precompute_ref_log_probs",
      stage);
  problems.require(!args.logging.generate_samples_every,
                   "generate_samples_every writes texts, which a model that scores sequences cannot; leave it out with"
                   " stage {}",
                   stage);
}

// The form of labels: bits of one number for several yes-or-no labels, so their count is limited.
void check_labels(const ScoringConfig& scoring, Problems& problems) {
  if (!scoring.problem_type || !scoring.num_labels) return;
  const int labels = *scoring.num_labels;
  switch (*scoring.problem_type) {
    case ProblemType::kRegression:
      problems.require(labels == 1, "problem_type regression predicts one number, and num_labels is {}; use 1", labels);
      break;
    case ProblemType::kSingleLabel:
      problems.require(labels >= 2, "num_labels is {}; problem_type single_label_classification needs at least 2",
                       labels);
      break;
    case ProblemType::kMultiLabel:
      problems.require(labels <= kMostLabelsAtOnce,
                       "num_labels is {}; problem_type multi_label_classification takes at most {}", labels,
                       kMostLabelsAtOnce);
      break;
  }
}

// Options of these stages would be ignored silently in others.
void check_scoring(const TrainingArguments& args, Problems& problems) {
  if (scores_sequences(args.run.stage))
    check_scoring_stage(args, problems);
  else
    problems.require(args.scoring == ScoringConfig{},
                     "num_labels and problem_type belong to stage cls, and center_rewards_coefficient to stage rm");
  check_labels(args.scoring, problems);
}

}  // namespace

void check_model(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  check_shape(args, context, problems);
  check_folder_decides(args, context, problems);
  check_experts(args, context, problems);
  check_expert_overlap(args, problems);
  check_router(args, problems);
  check_recompute(args, problems);
  check_offloading(args, problems);
  check_precision(args, problems);
  check_towers(args, problems);
  check_graphs(args.fusion, problems);
  check_scoring(args, problems);
}

}  // namespace megalith::config
