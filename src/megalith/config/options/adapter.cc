#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

constexpr const char* kPlainLora = "Megalith's adapters are LoRA and rank-stabilised LoRA";
constexpr const char* kNoRlhf =
    "PPO, KTO, BCO and their relatives are not part of Megalith; use stage dpo with one of the choices of pref_loss";

void add_lora(OptionList& list) {
  list.topic("Adapters", "lora");
  auto lora = list.part(&TrainingArguments::lora);
  lora.add("lora_rank", &LoraConfig::rank, "rank of the update").at_least(1).train_only().implemented();
  lora.add("lora_alpha", &LoraConfig::alpha, "scale = alpha / rank (none or 0: 2 * rank)")
      .at_least(0)
      .train_only()
      .implemented();
  lora.add("lora_dropout", &LoraConfig::dropout, "dropout before A").at_least(0).at_most(1).train_only().implemented();
  lora.add("lora_target", &LoraConfig::target,
           "module names, or all (all-linear): every linear layer but head and router")
      .commas()
      .train_only()
      .implemented();
  lora.add("additional_target", &LoraConfig::additional_target, "modules trained in full: embed_tokens, lm_head, norms")
      .alias({"modules_to_save"})
      .commas()
      .train_only()
      .implemented();
  lora.add("use_rslora", &LoraConfig::use_rslora, "scale = alpha / sqrt(rank)").train_only().implemented();
  lora.add("create_new_adapter", &LoraConfig::create_new_adapter, "merge the given adapters, start a fresh one")
      .train_only()
      .implemented();
  lora.add("adapter_name_or_path", &LoraConfig::adapter_name_or_path,
           "adapters: all but the last are merged, the last is trained on")
      .commas()
      .train_only()
      .implemented();
  lora.add("adapter_folder", &LoraConfig::adapter_folder, "folder that holds them").train_only().implemented();
  lora.add("loraplus_lr_ratio", &LoraConfig::loraplus_lr_ratio, "learning rate of B over that of A")
      .at_least(0)
      .train_only()
      .implemented();
  lora.add("loraplus_lr_embedding", &LoraConfig::loraplus_lr_embedding, "learning rate of embedding adapters")
      .at_least(0)
      .train_only()
      .implemented();
  list.refused_all(kPlainLora, {{"use_dora", flag()},
                                {"pissa_init", flag()},
                                {"pissa_iter", integer(16)},
                                {"pissa_convert", flag()},
                                {"oft_rank", integer(0)},
                                {"oft_block_size", integer(32)},
                                {"oft_target", text("all")},
                                {"module_dropout", number(0.0)}});
  list.no_effect_all("belongs to finetuning_type freeze, which is refused", {{"freeze_trainable_layers", integer(2)},
                                                                             {"freeze_trainable_modules", text("all")},
                                                                             {"freeze_extra_modules", opt_text()}});
}

void add_preferences(OptionList& list) {
  list.topic("Preferences", "lora");
  auto preference = list.part(&TrainingArguments::preference);
  preference
      .add("pref_loss", &PreferenceConfig::loss,
           "what a pair of answers costs; orpo and simpo need no reference model, the others do")
      .refuse({"kto_pair"}, kNoRlhf)
      .train_only()
      .implemented();
  preference.add("pref_beta", &PreferenceConfig::beta, "strength of the preference term")
      .alias({"beta", "dpo_beta"})
      .at_least(0)
      .train_only()
      .implemented();
  preference.add("pref_ftx", &PreferenceConfig::ftx, "weight of the chosen answers' sft loss")
      .alias({"dpo_ftx"})
      .at_least(0)
      .train_only()
      .implemented();
  preference
      .add("dpo_label_smoothing", &PreferenceConfig::label_smoothing,
           "share of pairs assumed wrong; sigmoid and robust only")
      .alias({"label_smoothing"})
      .at_least(0)
      .at_most(0.5)
      .train_only()
      .implemented();
  preference.add("simpo_gamma", &PreferenceConfig::simpo_gamma, "margin that simpo asks for")
      .at_least(0)
      .train_only()
      .implemented();
  preference.add("ref_model", &PreferenceConfig::ref_model, "reference model (none: the policy at the start)")
      .train_only()
      .implemented();
  preference
      .add("precompute_ref_log_probs", &PreferenceConfig::precompute_ref_log_probs,
           "run the reference once over the data, before training; its answers are kept between runs")
      .train_only()
      .implemented();
  preference.add("ref_model_adapters", &PreferenceConfig::ref_model_adapters, "adapters merged into it")
      .commas()
      .train_only()
      .implemented();
  list.refused_all(kNoRlhf, {{"pref_bco_weight", number(0.0)},
                             {"ld_alpha", opt_number()},
                             {"kto_chosen_weight", number(1.0)},
                             {"kto_rejected_weight", number(1.0)},
                             {"ppo_buffer_size", integer(1)},
                             {"ppo_epochs", integer(4)},
                             {"ppo_score_norm", flag()},
                             {"ppo_target", number(6.0)},
                             {"ppo_whiten_rewards", flag()},
                             {"reward_model", opt_text()},
                             {"reward_model_adapters", opt_text()},
                             {"reward_model_type", text("lora")}});
}

}  // namespace

void add_adapter_options(OptionList& list) {
  add_lora(list);
  add_preferences(list);
}

}  // namespace megalith::config
