#include "megalith/config/validate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

constexpr ValidationContext kPreview{.world_size = std::nullopt, .needs_inputs = false};

struct Rule {
  Words words;
  const char* named;  // the setting that the message must name
  Dialect dialect = Dialect::kTrain;
};

const std::vector<Rule>& rules() {
  constexpr Dialect kMegatron = Dialect::kPretrain;
  static const std::vector<Rule> list{
      {{"--vpp=2", "--num_layers_per_virtual_pipeline_stage=2", "--pp=2", "--num_layers=8"},
       "num_layers_per_virtual_pipeline_stage"},
      {{"--vpp=2"}, "pipeline_model_parallel_size"},
      {{"--pp=2", "--pipeline_schedule=interleaved"}, "virtual_pipeline_model_parallel_size"},
      {{"--pp=2", "--vpp=2", "--pipeline_schedule=zero_bubble"}, "pipeline_schedule"},
      {{"--vpp=2", "--pp=2", "--no_overlap_p2p_comm"}, "overlap_p2p_comm"},
      {{"--pp=3", "pipeline_model_parallel_layout=Et|tL"}, "pipeline_model_parallel_layout"},
      {{"--pp=2", "pipeline_model_parallel_layout=Ex|tL"}, "layout"},
      {{"--pp=2", "pipeline_model_parallel_layout=Et|tL", "--decoder_first_pipeline_num_layers=1"},
       "decoder_first_pipeline_num_layers"},
      {{"--pp=2", "pipeline_model_parallel_layout=Et|tL", "--account_for_loss_in_pipeline_split"},
       "account_for_loss_in_pipeline_split"},
      {{"--pp=2", "pipeline_model_parallel_layout=Et|t|t|tL", "--vpp=3"}, "virtual"},
      {{"--pp=2", "--num_layers_per_virtual_pipeline_stage=2"}, "num_layers"},
      {{"--tp_comm_overlap"}, "sequence_parallel"},
      {{"--tp=2", "--sequence_parallel", "--tp_comm_overlap_slices=2"}, "acts only with tp_comm_overlap"},
      {{"--cp=2", "--seq_length=1023"}, "seq_length"},
      {{"--cp=2", "--cp_comm_type=a2a+p2p"}, "hierarchical_context_parallel_sizes"},
      {{"--cp=4", "--num_attention_heads=6", "--cp_comm_type=a2a"}, "cp_comm_type p2p or all_gather"},
      {{"--num_layers=4", "--cp_comm_type", "p2p", "a2a"}, "cp_comm_type"},
      {{"--cp=2", "--attention_dropout=0.1"}, "attention_dropout"},
      {{"--tp=2", "--sequence_parallel", "--seq_length=1023"}, "seq_length"},
      {{"--seq_length=1024", "--max_position_embeddings=512"}, "max_position_embeddings"},
      {{"--defer_embedding_wgrad_compute"}, "defer_embedding_wgrad_compute"},
      {{"--defer_embedding_wgrad_compute", "--pp=2", "--pipeline_schedule=zero_bubble"}, "zero_bubble defers"},
      {{"--wgrad_deferral_limit=2", "--pp=2"}, "acts only with defer_embedding_wgrad_compute"},
      {{"--num_attention_heads=6", "--tp=4"}, "num_attention_heads"},
      {{"--num_query_groups=3", "--tp=2"}, "num_query_groups"},
      {{"--num_attention_heads=8", "--hidden_size=100"}, "kv_channels"},
      {{"--multi_latent_attention", "--group_query_attention"}, "group_query_attention"},
      {{"--mtp_num_layers=1", "--position_embedding_type=yarn"}, "mtp_num_layers"},
      {{"--no_position_embedding"}, "position_embedding_type", kMegatron},
      {{"--no_position_embedding", "--position_embedding_type=none"}, "position_embedding_type", kMegatron},
      {{"--compute_accuracy", "--cross_entropy_loss_fusion"}, "compute_accuracy"},
      {{"--num_experts=6", "--ep=4"}, "num_experts"},
      {{"--moe_shared_expert_overlap", "--moe_token_dispatcher_type=allgather"}, "alltoall"},
      {{"--overlap_moe_expert_parallel_comm", "--ep=2", "--moe_token_dispatcher_type=allgather"},
       "overlap_moe_expert_parallel_comm needs moe_token_dispatcher_type alltoall"},
      {{"--overlap_moe_expert_parallel_comm", "--ep=2", "--pp=2"}, "needs virtual stages"},
      {{"--overlap_moe_expert_parallel_comm", "--ep=2", "--pp=2", "--pipeline_schedule=zero_bubble"},
       "needs virtual stages"},
      {{"--overlap_moe_expert_parallel_comm", "--ep=2", "--cuda_graph_impl=local"}, "does not work with CUDA graphs"},
      {{"--overlap_moe_expert_parallel_comm", "--ep=2", "--pp=4", "--vpp=2", "--defer_embedding_wgrad_compute"},
       "does not work with defer_embedding_wgrad_compute"},
      {{"--moe_pad_expert_input_to_capacity"}, "moe_expert_capacity_factor"},
      {{"--moe_expert_capacity_factor=1", "--moe_router_load_balancing_type=sinkhorn"}, "moe_expert_capacity_factor"},
      {{"--moe_router_load_balancing_type=sinkhorn", "--moe_aux_loss_coeff=0.1"}, "moe_aux_loss_coeff"},
      {{"--moe_router_load_balancing_type", "aux_loss", "seq_aux_loss", "--moe_aux_loss_coeff=0.1"},
       "moe_aux_loss_coeff"},
      {{"--num_experts=8", "--moe_router_topk=1"}, "moe_router_pre_softmax"},
      {{"--num_experts=8", "--moe_router_topk=9"}, "moe_router_topk"},
      {{"--num_experts=8", "--moe_router_num_groups=3"}, "moe_router_num_groups"},
      {{"--num_experts=8", "--moe_router_group_topk=1"}, "moe_router_num_groups"},
      {{"--num_experts=8", "--moe_router_enable_expert_bias"}, "moe_router_score_function"},
      {{"--moe_router_num_groups=2", "--moe_router_group_topk=3"}, "moe_router_group_topk"},
      {{"--recompute_granularity=selective", "--recompute_method=block"}, "recompute_method"},
      {{"--recompute_granularity=full", "--recompute_activations"}, "recompute_activations"},
      {{"--distribute_saved_activations"}, "distribute_saved_activations"},
      {{"--cpu_offloading", "--pp=2"}, "cpu_offloading needs pipeline_model_parallel_size 1, not 2"},
      {{"--cpu_offloading_num_layers=1", "--recompute_granularity=full"}, "that recomputation does without"},
      {{"--cpu_offloading_num_layers=1", "--recompute_activations"}, "that recomputation does without"},
      {{"--cpu_offloading_num_layers=1", "--moe_layer_recompute"}, "that recomputation does without"},
      {{"--cpu_offloading_num_layers=4", "--num_layers=4"}, "4 is not less than num_layers 4"},
      {{"--cpu_offloading_num_layers=1", "--cuda_graph_impl=local"}, "does not work with CUDA graphs"},
      {{"--bf16", "--fp16"}, "fp16"},
      {{"--fp8_param"}, "fp8_param needs fp8"},
      {{"--fp8_param", "--fp8=hybrid", "--bf16"}, "fp8_param needs use_distributed_optimizer"},
      {{"--fp8_param_gather", "--fp8=hybrid", "--bf16", "--use_distributed_optimizer", "--finetuning_type=lora"},
       "finetuning_type lora trains adapters"},
      {{"--fp8_recipe=delayed"}, "fp8_recipe"},
      {{"--fp8_head", "--cross_entropy_loss_fusion"}, "fp8_head needs fp8; set fp8 to e4m3 or hybrid"},
      {{"--fp8_experts"}, "fp8_experts needs fp8; set fp8 to e4m3 or hybrid"},
      {{"--fp8_head", "--fp8=hybrid", "--bf16"}, "fp8_head needs cross_entropy_loss_fusion"},
      {{"--no-fp8-wgrad"}, "no_fp8_wgrad needs fp8", kMegatron},
      {{"--fp8=hybrid"}, "bf16"},
      {{"--fp8_amax_history_len=4"}, "fp8_amax_history_len", kMegatron},
      {{"--bf16", "--fp8=hybrid", "--fp8_recipe=tensorwise", "--fp8_margin=1"}, "fp8_margin", kMegatron},
      {{"--grad_reduce_in_bf16"}, "bf16"},
      {{"--max_steps=5", "--train_samples=5"}, "train_samples"},
      {{"--train_samples=5", "--lr_decay_iters=5"}, "lr_decay_samples"},
      {{"--train_iters=5", "--lr_warmup_samples=5"}, "lr_warmup_iters"},
      {{"--lr_warmup_fraction=0.1", "--lr_warmup_iters=5"}, "lr_warmup_fraction"},
      {{"--warmup_ratio=0.1", "--lr_warmup_iters=5"}, "warmup_ratio"},
      {{"--min_lr=1", "--lr=0.1"}, "min_lr"},
      {{"--decoupled_min_lr=0.1"}, "decoupled_lr"},
      {{"--override_opt_param_scheduler", "--use_checkpoint_opt_param_scheduler"}, "override_opt_param_scheduler"},
      {{"--lr_decay_style=WSD"}, "lr_wsd_decay_iters"},
      {{"--start_weight_decay=0.1"}, "start_weight_decay"},
      {{"--weight_decay_incr_style=linear"}, "weight_decay_incr_style"},
      {{"--lr_scheduler_type=warmup_stable_decay"}, "wsd_decay_steps"},
      {{"--lr_scheduler_type=warmup_stable_decay", "--lr_scheduler_kwargs={\"wsd_decay_steps\": 2}"},
       "lr_wsd_decay_style"},
      {{"--lr_scheduler_kwargs={\"num_cycles\": 2}"}, "num_cycles"},
      {{"--lr_scheduler_kwargs={\"min_lr\": \"x\"}"}, "min_lr"},
      {{"--overlap_param_gather"}, "use_distributed_optimizer"},
      {{"--overlap_param_gather_with_optimizer_step"}, "overlap_param_gather"},
      {{"--overlap_param_gather_with_optimizer_step", "--overlap_param_gather", "--overlap_grad_reduce",
        "--use_distributed_optimizer", "--pp=4", "--vpp=2", "--optimizer_cpu_offload"},
       "neither with optimizer_cpu_offload nor"},
      {{"--ddp_average_in_collective", "--calculate_per_token_loss"}, "ddp_average_in_collective"},
      {{"--ddp_bucket_size=5", "--ddp_num_buckets=5"}, "ddp_num_buckets"},
      {{"--exp_avg_dtype=bf16"}, "exp_avg_dtype"},
      {{"--use_precision_aware_optimizer", "--optimizer=sgd", "--exp_avg_sq_dtype=fp8"}, "no second moment"},
      {{"--use_precision_aware_optimizer", "--optimizer=lion", "--exp_avg_sq_dtype=fp8"},
       "but lion has no second moment"},
      {{"--use_precision_aware_optimizer", "--optimizer=muon", "--muon_scalar_optimizer=lion",
        "--exp_avg_sq_dtype=fp8"},
       "but muon has no second moment"},
      {{"--optimizer=muon", "--finetuning_type=lora"}, "finetuning_type lora trains the factors"},
      {{"--optimizer=muon", "--finetuning_type=full", "--optimizer_cpu_offload"}, "whole matrices on the device"},
      {{"--optimizer=muon", "--finetuning_type=full", "--optim=sgd"}, "optimizer muon and optim sgd"},
      {{"--optimizer=lion", "--optim=sgd"}, "optimizer lion and optim sgd"},
      {{"--use_precision_aware_optimizer", "--main_params_dtype=fp16"}, "main_params_dtype fp16 needs bf16 or fp16"},
      {{"--use_precision_aware_optimizer", "--main_grads_dtype=bf16"}, "main_grads_dtype bf16 needs bf16"},
      {{"--fp32_residual_connection"}, "fp32_residual_connection needs bf16 or fp16"},
      {{"--use_precision_aware_optimizer", "--main_grads_dtype=bf16", "--bf16", "--finetuning_type=full",
        "--accumulate_allreduce_grads_in_fp32"},
       "accumulate_allreduce_grads_in_fp32"},
      {{"--use_precision_aware_optimizer", "--main_params_dtype=fp16", "--bf16", "--finetuning_type=lora"},
       "adapters are trained in fp32"},
      {{"--optimizer_cpu_offload"}, "optimizer_cpu_offload", kMegatron},
      {{"--train_on_prompt", "--mask_history"}, "mask_history"},
      {{"--stage=dpo", "--mask_history"}, "mask_history"},
      {{"--stage=pt", "--neat_packing"}, "neat_packing"},
      {{"--streaming"}, "max_steps"},
      {{"--streaming", "--max_steps=5", "--max_samples=5"}, "max_samples"},
      {{"--streaming", "--max_steps=5", "--val_size=0.1"}, "val_size"},
      {{"--streaming", "--max_steps=5", "--tokenized_path=x"}, "tokenized_path"},
      {{"--val_size=0.1", "--eval_dataset=a"}, "eval_dataset"},
      {{"--val_size=1.5"}, "val_size"},
      {{"--dataset=a,b", "--interleave_probs=0.5,0.5"}, "mix_strategy"},
      {{"--dataset=a,b", "--mix_strategy=interleave_over", "--interleave_probs=0.5"}, "interleave_probs"},
      {{"--dataset=a", "--mix_strategy=interleave_over", "--interleave_probs=x"}, "interleave_probs"},
      {{"--dataloader_prefetch_factor=2"}, "dataloader_num_workers"},
      {{"--finetuning_type=full", "--adapter_name_or_path=a"}, "adapter_name_or_path"},
      {{"--finetuning_type=full", "--pissa_init"}, "pissa_init needs finetuning_type lora"},
      {{"--pissa_iter=4"}, "pissa_iter needs pissa_init"},
      {{"--pissa_convert"}, "pissa_convert needs pissa_init"},
      {{"--pissa_init", "--quantization_bit=4"}, "which quantization_bit keeps as they are"},
      {{"--quantization_bit=8", "--quantization_type=fp4"}, "need quantization_bit 4"},
      {{"--quantization_bit=8", "--no_double_quantization"}, "leave them out"},
      {{"--quantization_bit=8", "--finetuning_type=full"}, "keeps frozen weights in 8 bits"},
      {{"--pissa_init", "--adapter_name_or_path=a"}, "set create_new_adapter"},
      {{"--pissa_init", "--stage=dpo"}, "reference below the adapter"},
      {{"--finetuning_type=full", "--use_rslora"}, "use_rslora"},
      {{"--finetuning_type=full", "--use_dora"}, "use_dora needs finetuning_type lora"},
      {{"--finetuning_type=lora", "--freeze_trainable_layers=3"},
       "freeze_trainable_layers needs finetuning_type freeze"},
      {{"--finetuning_type=full", "--freeze_extra_modules=norm"}, "freeze_extra_modules needs finetuning_type freeze"},
      {{"--finetuning_type=lora", "--use_llama_pro"}, "use_llama_pro needs finetuning_type freeze"},
      {{"--finetuning_type=freeze", "--freeze_trainable_layers=0"}, "leaves nothing to train"},
      {{"--finetuning_type=freeze", "--use_llama_pro", "--freeze_trainable_layers=-2"}, "it must be at least 1"},
      {{"--finetuning_type=freeze", "--freeze_language_model"}, "freeze_language_model freezes the layers"},
      {{"--finetuning_type=lora", "--use_dora", "--fp8=hybrid", "--bf16"}, "use_dora does not work with fp8"},
      {{"--finetuning_type=full", "--loraplus_lr_ratio=2"}, "loraplus_lr_ratio"},
      {{"--finetuning_type=full", "--create_new_adapter"}, "create_new_adapter"},
      {{"--pref_loss=orpo", "--dpo_label_smoothing=0.1"}, "dpo_label_smoothing"},
      {{"--stage=dpo", "--packing"}, "packing"},
      {{"--stage=dpo", "--calculate_per_token_loss"}, "calculate_per_token_loss"},
      {{"--stage=dpo", "--ref_model_adapters=a"}, "ref_model_adapters"},
      {{"--pref_loss=hinge", "--dpo_label_smoothing=0.1"}, "dpo_label_smoothing"},
      {{"--pref_loss=robust", "--dpo_label_smoothing=0.5"}, "below 0.5"},
      {{"--label_smoothing_factor=1"}, "below 1"},
      {{"--stage=dpo", "--neftune_noise_alpha=5"}, "neftune_noise_alpha"},
      {{"--group_by_length", "--streaming", "--max_steps=5"}, "lengths of a stream"},
      {{"--train_sampling_strategy=group_by_length", "--disable_shuffling"}, "disable_shuffling"},
      {{R"(--deepspeed={"zero_optimization": {"stage": 3}})"}, "tensor_model_parallel_size"},
      {{R"(--deepspeed={"zero_optimization": {"stage": "two"}})"}, "takes 0, 1 and 2"},
      {{R"(--deepspeed={"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})"}, "cpu only"},
      {{R"(--deepspeed={"scheduler": {"type": "WarmupLR"}})"}, "lr_scheduler_type"},
      {{"--stage=dpo", "--label_smoothing_factor=0.1"}, "dpo_label_smoothing"},
      {{"--stage=dpo", "--pref_loss=ipo", "--pref_beta=0"}, "pref_beta"},
      {{"--stage=dpo", "--pref_loss=sppo_hard", "--pref_beta=0"}, "sppo_hard divides by pref_beta"},
      {{"--stage=dpo", "--pref_loss=exo_pair"}, "exo_pair takes the logarithm of dpo_label_smoothing"},
      {{"--stage=dpo", "--pref_loss=discopop", "--discopop_tau=0"}, "discopop_tau"},
      {{"--stage=dpo", "--pref_loss=apo_zero", "--dpo_label_smoothing=0.1"}, "dpo_label_smoothing"},
      {{"--stage=dpo", "--pref_loss=orpo", "--ld_alpha=0.5"}, "ld_alpha is for losses with a reference model"},
      {{"--stage=rm", "--packing"}, "packing does not work with stage rm: rows are pairs"},
      {{"--stage=rm", "--sequence_packing"}, "sequence_packing does not work with stage rm"},
      {{"--stage=rm", "--calculate_per_token_loss"}, "its loss is a mean over pairs"},
      {{"--stage=rm", "--num_labels=3"}, "stage rm trains one reward per answer"},
      {{"--stage=rm", "--ref_model=a"}, "stage rm has no reference model"},
      {{"--stage=cls", "--packing", "--num_labels=3"}, "use neat_packing"},
      {{"--stage=cls", "--label_smoothing_factor=0.1"}, "label_smoothing_factor does not work with stage cls"},
      {{"--stage=cls", "--center_rewards_coefficient=0.1"}, "center_rewards_coefficient belongs to stage rm, not cls"},
      {{"--stage=cls", "--num_labels=2", "--problem_type=regression"}, "num_labels is 2; use 1"},
      {{"--stage=cls", "--num_labels=1", "--problem_type=single_label_classification"}, "needs at least 2"},
      {{"--stage=cls", "--num_labels=32", "--problem_type=multi_label_classification"}, "takes at most 31"},
      {{"--stage=cls", "--generate_samples_every=5"}, "cannot; leave it out with stage cls"},
      {{"--stage=sft", "--num_labels=2"}, "num_labels and problem_type belong to stage cls"},
      {{"--stage=kto", "--packing"}, "packing does not work with stage kto"},
      {{"--stage=kto", "--calculate_per_token_loss"}, "its loss is a mean over answers"},
      {{"--stage=kto", "--pref_loss=hinge"}, "pref_loss hinge is a loss of pairs"},
      {{"--stage=kto", "--ld_alpha=0.5"}, "ld_alpha compares the answers of a pair"},
      {{"--stage=kto", "--dpo_label_smoothing=0.1"}, "leave it out with stage kto"},
      {{"--stage=kto", "--preprocessing_batch_size=1"}, "preprocessing_batch_size is 1"},
      {{"--stage=kto", "--ref_model_adapters=a"}, "ref_model_adapters"},
      {{"--stage=kto", "--precompute_ref_log_probs", "--streaming", "--max_steps=5"}, "streaming"},
      {{"--stage=dpo", "--pref_loss=orpo", "--ref_model=r"}, "ref_model"},
      {{"--stage=dpo", "--pref_loss=simpo", "--precompute_ref_log_probs"}, "precompute_ref_log_probs"},
      {{"--stage=dpo", "--precompute_ref_log_probs", "--streaming", "--max_steps=5"}, "streaming"},
      {{"--kd_ratio=0.5"}, "teacher_model_name_or_path"},
      {{"--teacher_model_name_or_path=t", "--stage=dpo"}, "use pt or sft"},
      {{"--teacher_model_name_or_path=t", "--kd_temperature=0"}, "kd_temperature"},
      {{"--teacher_model_name_or_path=t", "--kd_ratio=0"}, "kd_ratio"},
      {{"--teacher_model_name_or_path=t", "--kd_loss=reverse_kl", "--kd_beta=0.1"}, "kd_beta"},
      {{"--teacher_model_name_or_path=t"}, "`megalith train` only", kMegatron},
      {{"--kd_top_k=4"}, "teacher_logits_path"},
      {{"--teacher_model_name_or_path=t", "--kd_top_k=4"}, "kd_top_k and kd_tail are for teacher_logits_path"},
      {{"--teacher_model_name_or_path=t", "--kd_tail=false"}, "kd_top_k and kd_tail are for teacher_logits_path"},
      {{"--teacher_model_name_or_path=t", "--teacher_logits_path=f"}, "leave out one of them"},
      {{"--teacher_logits_path=f", "--stage=dpo"}, "teacher_logits_path does not work with stage dpo"},
      {{"--teacher_logits_path=f", "--streaming", "--max_steps=1"}, "does not work with streaming"},
      {{"--logging_steps=0"}, "logging_steps"},
      {{"--logging_steps=1.5"}, "logging_steps"},
      {{"--eval_strategy=steps", "--eval_steps=2.5"}, "eval_steps"},
      {{"--save_steps=0"}, "save_steps"},
      {{"--early_stopping_steps=2"}, "early_stopping_steps"},
      {{"--load_best_model_at_end"}, "eval_strategy"},
      {{"--load_best_model_at_end", "--eval_strategy=no", "--save_strategy=no"}, "eval_strategy"},
      {{"--load_best_model_at_end", "--eval_strategy=steps", "--eval_steps=300"}, "eval_steps"},
      {{"--save_strategy=best"}, "metric_for_best_model"},
      {{"--save", "x"}, "save_interval", kMegatron},
      {{"--save", "x", "--save-interval", "10", "--save-retain-interval", "15"}, "save_retain_interval", kMegatron},
      {{"--non_persistent_save_interval=2", "--save=out", "--save_interval=4"},
       "needs non_persistent_ckpt_type: global or local",
       kMegatron},
      {{"--non_persistent_global_ckpt_dir=fast"}, "needs non_persistent_ckpt_type global", kMegatron},
      {{"--non_persistent_save_interval=2", "--non_persistent_ckpt_type=global"}, "needs save", kMegatron},
      {{"--non_persistent_ckpt_type=global"}, "belong to `pretrain`"},
      {{"--non_persistent_ckpt_type=local"},
       "needs non_persistent_local_ckpt_dir: a folder on each machine",
       kMegatron},
      {{"--non_persistent_local_ckpt_dir=ssd"}, "needs non_persistent_ckpt_type local", kMegatron},
      {{"--non_persistent_ckpt_type=local", "--non_persistent_local_ckpt_dir=ssd", "--no_load_rng"},
       "the whole state of a run; leave out no_load_rng",
       kMegatron},
      {{"--replication", "--replication_jump=2"}, "needs non_persistent_ckpt_type local", kMegatron},
      {{"--non_persistent_ckpt_type=local", "--non_persistent_local_ckpt_dir=ssd", "--replication"},
       "needs replication_jump: the distance between ranks",
       kMegatron},
      {{"--load_main_params_from_ckpt"}, "no_load_optim"},
      {{"--calc_ft_timeouts"}, "calc_ft_timeouts needs save", kMegatron},
      {{"--load_main_params_from_ckpt", "--no_load_optim", "--finetune"}, "finetune"},
      {{"--override_ckpt_iteration=5", "--finetune"}, "override_ckpt_iteration"},
      {{"--use_checkpoint_args"}, "use_checkpoint_args"},
      {{"--iterations_to_skip", "0"}, "iterations_to_skip"},
      {{"--profile", "--profile_step_start=9", "--profile_step_end=9"}, "profile_step_start"},
      {{"--generate_samples_prompts=prompts.txt"}, "set generate_samples_every to a number of steps"},
      {{"--generate_samples_every=5"}, "samples.jsonl into output_dir, which is not given", kMegatron},
      {{"--log_histograms_interval=5"}, "histograms.jsonl into output_dir, which is not given", kMegatron},
      {{"--generate_samples_every=5", "--streaming", "--max_steps=5"}, "set generate_samples_prompts to a file"},
  };
  return list;
}

TEST(Validate, DefaultsFitTogether) {
  EXPECT_EQ(problems(args_of({}), kPreview), Words{});
  EXPECT_EQ(problems(args_of({}, Dialect::kPretrain), kPreview), Words{});
}

TEST(Validate, EachViolationNamesTheSetting) {
  for (const Rule& rule : rules()) {
    const Words found = problems(args_of(rule.words, rule.dialect), kPreview);
    EXPECT_TRUE(
        std::ranges::any_of(found, [&](const std::string& text) { return text.find(rule.named) != std::string::npos; }))
        << rule.named << " is not named for " << ::testing::PrintToString(rule.words) << ": "
        << ::testing::PrintToString(found);
  }
}

TEST(Validate, ReportsEveryViolationAtOnce) {
  const TrainingArguments args =
      args_of({"--bf16", "--fp16", "--overlap_param_gather", "--streaming", "--fp8_param", "--tp=4", "--pp=2"});
  const TrainingArguments before = args;
  try {
    validate(args, {.world_size = 12, .needs_inputs = false});
    FAIL() << "nothing was found";
  } catch (const ConfigError& error) {
    for (const char* part : {"bf16 and fp16", "overlap_param_gather", "streaming", "fp8_param", "does not divide"})
      EXPECT_TRUE(contains(error.what(), part));
  }
  EXPECT_EQ(args, before);
}

TEST(Validate, ValuesThatNoParserSawAreCheckedToo) {
  TrainingArguments args = args_of({});
  args.parallel.tp = 0;
  args.optimizer.exp_avg_dtype = "int4";
  const std::string found = ::testing::PrintToString(problems(args, kPreview));
  EXPECT_TRUE(contains(found, "tensor_model_parallel_size is 0"));
  EXPECT_TRUE(contains(found, "exp_avg_dtype is int4"));
}

TEST(Validate, WorldSizeBringsGridAndBatch) {
  const auto with_world = [](const Words& words, int world) {
    return problems(args_of(words), {.world_size = world, .needs_inputs = false});
  };
  EXPECT_EQ(with_world({"--tp=4", "--pp=2"}, 16), Words{});
  EXPECT_FALSE(with_world({"--tp=4", "--pp=2"}, 12).empty());
  EXPECT_FALSE(with_world({"--ep=3"}, 16).empty());
  EXPECT_FALSE(with_world({"--micro_batch_size=3", "--global_batch_size=16"}, 2).empty());
  EXPECT_FALSE(
      with_world({"--micro_batch_size=1", "--global_batch_size=16", "--gradient_accumulation_steps=4"}, 2).empty());
  EXPECT_EQ(with_world({"--micro_batch_size=1", "--global_batch_size=8", "--gradient_accumulation_steps=4"}, 2),
            Words{});
  EXPECT_FALSE(with_world({"--eval_global_batch_size=5", "--eval_micro_batch_size=2"}, 2).empty());
  EXPECT_FALSE(with_world({"--rampup_batch_size", "4", "4"}, 1).empty());
  EXPECT_FALSE(with_world({"--step_batch_size_schedule=1:4", "--micro_batch_size=1"}, 1).empty());
  EXPECT_FALSE(
      with_world({"--step_batch_size_schedule=0:4 10:8", "--micro_batch_size=1", "--global_batch_size=4"}, 1).empty());
  EXPECT_EQ(with_world({"--step_batch_size_schedule=0:4 10:8", "--micro_batch_size=1", "--global_batch_size=8"}, 1),
            Words{});
}

TEST(Validate, ARunNeedsItsInputs) {
  const Words train = problems(args_of({}));
  EXPECT_TRUE(contains(::testing::PrintToString(train), "model_name_or_path"));
  EXPECT_TRUE(contains(::testing::PrintToString(train), "dataset"));
  const std::string pretrain = ::testing::PrintToString(problems(args_of({}, Dialect::kPretrain)));
  for (const char* part :
       {"micro_batch_size", "num_layers", "hidden_size", "num_attention_heads", "train_iters", "lr", "data_path"})
    EXPECT_TRUE(contains(pretrain, part));
  EXPECT_EQ(problems(args_of({"--model_name_or_path=m", "--dataset=d"})), Words{});
}

TEST(Validate, LimitsOfTheReferenceAreNotOurs) {
  for (const Words& words : std::vector<Words>{{"--num_layers=15", "--pp=4"},
                                               {"--sequence_packing"},
                                               {"--variable_seq_lengths"},
                                               {"--recompute_granularity=full"},
                                               {"--sequence_parallel"}})
    EXPECT_EQ(problems(args_of(words), kPreview), Words{}) << words.front();
}

TEST(Validate, RotaryModelsHaveNoLearnedPositionsAnyway) {
  EXPECT_EQ(
      problems(args_of({"--no_position_embedding", "--position_embedding_type=rope"}, Dialect::kPretrain), kPreview),
      Words{});
}

TEST(Validate, ShapesOfAModelFolderAreNotGivenAsOptions) {
  const TrainingArguments args =
      args_of({"--model_name_or_path=m", "--dataset=d", "--template=qwen", "--hidden_size=8", "--swiglu"});
  std::string all;
  for (const std::string& problem : problems(args, {.needs_inputs = true})) all += problem + "\n";
  EXPECT_TRUE(contains(all, "hidden_size"));
  EXPECT_TRUE(contains(all, "swiglu"));
  EXPECT_TRUE(contains(all, "config.json"));
}

}  // namespace
}  // namespace megalith::config
