// Options of adapters and preferences. The help texts are what --help and docs/options.md show; "(none: …)" says what a
// missing value means.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// Low-rank adapters: W x + scale * B (A x), with A [rank, in] and B [out, rank]. The names are LLaMA-Factory's;
// modules_to_save is PEFT's.
void add_lora(OptionList& list) {
  list.topic("Adapters");
  auto lora = list.part(&TrainingArguments::lora);
  lora.add("lora_rank", &LoraConfig::rank, "rank of the update").at_least(1).train_only();
  lora.add("lora_alpha", &LoraConfig::alpha, "scale = alpha / rank (none or 0: 2 * rank)").at_least(0).train_only();
  lora.add("lora_dropout", &LoraConfig::dropout, "dropout before A").at_least(0).at_most(1).train_only();
  lora.add("lora_target", &LoraConfig::target,
           "module names, or all (all-linear): every linear layer but head and router")
      .commas()
      .train_only();
  lora.add("additional_target", &LoraConfig::additional_target,
           "modules trained in full: embed_tokens, lm_head, norms, gate, visual.merger; bias: all biases")
      .alias({"modules_to_save"})
      .commas()
      .train_only();
  lora.add("use_rslora", &LoraConfig::use_rslora, "scale = alpha / sqrt(rank)").train_only();
  lora.add("use_dora", &LoraConfig::use_dora, "also train the norms of the rows of W + scale * B A (DoRA)")
      .train_only();
  // PiSSA: the adapter holds the largest singular values of each weight, and the weight keeps the rest.
  lora.add("pissa_init", &LoraConfig::pissa_init,
           "start A and B as the principal singular parts of each weight, which keeps the rest (PiSSA)")
      .train_only();
  lora.add("pissa_iter", &LoraConfig::pissa_iter,
           "iterations of the randomized SVD that pissa_init uses; -1: the exact SVD")
      .at_least(-1)
      .train_only();
  lora.add("pissa_convert", &LoraConfig::pissa_convert,
           "write such an adapter into output_dir as one of twice the rank for the base model as it was")
      .train_only();
  // Adapters to start from. Without create_new_adapter the last of several is trained on, and those before it are
  // merged into the weights.
  lora.add("create_new_adapter", &LoraConfig::create_new_adapter, "merge the given adapters, start a fresh one")
      .train_only();
  lora.add("adapter_name_or_path", &LoraConfig::adapter_name_or_path,
           "adapters: all but the last are merged, the last is trained on")
      .commas()
      .train_only();
  lora.add("adapter_folder", &LoraConfig::adapter_folder, "folder that holds the adapters").train_only();
  // QLoRA and LLM.int8: the frozen linear weights of layers in 4 or 8 bits, as bitsandbytes defines them.
  lora.add("quantization_bit", &LoraConfig::quantization_bit,
           "4 or 8: keep the frozen linear weights below an adapter in so many bits (none: in the dtype of the run)")
      .refuse({"2", "3", "5", "6", "7"},
              "only bitsandbytes' weights in 4 and 8 bits are part of Megalith; set quantization_bit 4 or 8")
      .at_least(4)
      .at_most(8)
      .train_only();
  lora.add("quantization_type", &LoraConfig::quantization_type, "values of weights in 4 bits").train_only();
  lora.add("double_quantization", &LoraConfig::double_quantization,
           "keep the scales of weights in 4 bits in 8 bits: 4.13 bits per number instead of 4.5")
      .train_only();
  // LoRA+: B starts at zero and profits from a higher rate than A.
  lora.add("loraplus_lr_ratio", &LoraConfig::loraplus_lr_ratio, "learning rate of B over that of A")
      .at_least(0)
      .train_only();
  lora.add("loraplus_lr_embedding", &LoraConfig::loraplus_lr_embedding, "learning rate of embedding adapters")
      .at_least(0)
      .train_only();
}

// Training of some layers. The names are LLaMA-Factory's.
void add_freeze(OptionList& list) {
  list.topic("Frozen layers");
  auto freeze = list.part(&TrainingArguments::freeze);
  freeze
      .add("freeze_trainable_layers", &FreezeConfig::layers,
           "layers that finetuning_type freeze trains: above 0 the last so many, below 0 the first")
      .train_only();
  freeze
      .add("freeze_trainable_modules", &FreezeConfig::modules,
           "modules of these layers that are trained (self_attn, mlp, …), or all")
      .commas()
      .train_only();
  freeze
      .add("freeze_extra_modules", &FreezeConfig::extra,
           "modules outside of layers that are trained as well: embed_tokens, norm, lm_head")
      .commas()
      .train_only();
  freeze
      .add("use_llama_pro", &FreezeConfig::llama_pro,
           "train freeze_trainable_layers layers at equal distances, the last of each block of layers")
      .train_only();
}

// Preference training on pairs (chosen, rejected), and on single answers with verdicts. The formulas of the losses are
// in train/preference/preference_loss.h and kto_loss.h.
void add_preferences(OptionList& list) {
  list.topic("Preferences");
  auto preference = list.part(&TrainingArguments::preference);
  preference
      .add("pref_loss", &PreferenceConfig::loss,
           "what a pair of answers costs; orpo and simpo need no reference model, the others do")
      .refuse({"kto_pair"},
              "kto_pair trains on verdicts taken from pairs; give each answer its verdict, and use stage kto")
      .train_only();
  preference.add("pref_beta", &PreferenceConfig::beta, "strength of the preference term")
      .alias({"beta", "dpo_beta"})
      .at_least(0)
      .train_only();
  preference.add("pref_ftx", &PreferenceConfig::ftx, "weight of the chosen answers' sft loss")
      .alias({"dpo_ftx"})
      .at_least(0)
      .train_only();
  preference
      .add("dpo_label_smoothing", &PreferenceConfig::label_smoothing,
           "share of pairs assumed wrong; sigmoid, robust, exo_pair, aot and aot_unpaired only")
      .alias({"label_smoothing"})
      .at_least(0)
      .at_most(0.5)
      .train_only();
  preference.add("simpo_gamma", &PreferenceConfig::simpo_gamma, "margin that simpo asks for").at_least(0).train_only();
  preference.add("discopop_tau", &PreferenceConfig::discopop_tau, "temperature at which discopop changes its form")
      .at_least(0)
      .train_only();
  preference
      .add("ld_alpha", &PreferenceConfig::ld_alpha,
           "weight of an answer's tokens beyond the length of the shorter one (none: all tokens count alike)")
      .at_least(0)
      .at_most(1)
      .train_only();
  preference.add("kto_chosen_weight", &PreferenceConfig::kto_chosen_weight, "weight of desirable answers in stage kto")
      .alias({"desirable_weight"})
      .at_least(0)
      .train_only();
  preference
      .add("kto_rejected_weight", &PreferenceConfig::kto_rejected_weight, "weight of undesirable answers in stage kto")
      .alias({"undesirable_weight"})
      .at_least(0)
      .train_only();
  // The reference model is frozen. It needs memory of its own unless its log-probabilities are computed beforehand, or
  // the policy is a LoRA adapter, whose base is the reference.
  preference.add("ref_model", &PreferenceConfig::ref_model, "reference model (none: the policy at the start)")
      .train_only();
  preference
      .add("precompute_ref_log_probs", &PreferenceConfig::precompute_ref_log_probs,
           "run the reference once over the data, before training; its answers are kept between runs")
      .train_only();
  preference
      .add("ref_model_adapters", &PreferenceConfig::ref_model_adapters, "adapters merged into the reference model")
      .commas()
      .train_only();
}

// Scores of whole sequences. The names are those of transformers' configurations and of trl's RewardTrainer.
void add_scoring(OptionList& list) {
  list.topic("Reward models and classification");
  auto scoring = list.part(&TrainingArguments::scoring);
  scoring
      .add("num_labels", &ScoringConfig::num_labels,
           "stage cls: scores of a text (none: as many as the head in the model folder has)")
      .at_least(1)
      .train_only();
  scoring
      .add("problem_type", &ScoringConfig::problem_type,
           "stage cls: what the scores are for (none: that of the model folder, else regression for one label, "
           "single_label_classification for more)")
      .train_only();
  scoring
      .add("center_rewards_coefficient", &ScoringConfig::center_rewards_coefficient,
           "stage rm: weight of (r_chosen + r_rejected)^2, which draws rewards towards 0")
      .at_least(0)
      .train_only();
}

// Training towards a teacher's distributions. The formulas are in train/distillation/distillation_loss.h.
void add_distillation(OptionList& list) {
  list.topic("Distillation");
  auto distillation = list.part(&TrainingArguments::distillation);
  distillation
      .add("teacher_model_name_or_path", &DistillationConfig::teacher,
           "model with the same vocabulary whose distributions stages pt and sft train towards")
      .train_only();
  distillation
      .add("kd_loss", &DistillationConfig::loss,
           "divergence: KL(teacher, model), KL(model, teacher), or jsd, which lies between them")
      .train_only();
  distillation
      .add("kd_beta", &DistillationConfig::beta, "jsd: the share of the teacher in the mixture of both distributions")
      .at_least(0)
      .at_most(1)
      .train_only();
  distillation
      .add("kd_temperature", &DistillationConfig::temperature, "divides the logits of both models, for the kd loss")
      .at_least(0)
      .train_only();
  distillation
      .add("kd_ratio", &DistillationConfig::ratio, "share of the kd loss; the rest is cross-entropy with the labels")
      .at_least(0)
      .at_most(1)
      .train_only();
  distillation
      .add("teacher_logits_path", &DistillationConfig::files,
           "folder with a teacher's likeliest tokens (`megalith distill`), which take the teacher's place")
      .train_only();
  distillation
      .add("kd_top_k", &DistillationConfig::top_k,
           "with teacher_logits_path: likeliest tokens to compare (none: all that the files keep)")
      .at_least(1)
      .train_only();
  distillation
      .add("kd_tail", &DistillationConfig::tail,
           "with teacher_logits_path: all other tokens are one more class; without, both distributions are those of"
           " the kept tokens alone")
      .train_only();
}

}  // namespace

void add_adapter_options(OptionList& list) {
  add_lora(list);
  add_freeze(list);
  add_preferences(list);
  add_scoring(list);
  add_distillation(list);
}

}  // namespace megalith::config
