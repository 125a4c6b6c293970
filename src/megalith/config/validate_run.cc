// Rules for data, adapters, preferences, evaluation, logging and saving. They follow the checks of LLaMA-Factory and
// Hugging Face for `train` and of Megatron for `pretrain`, and apply to values as given: derive() has not run yet.
#include <cmath>
#include <set>

#include "megalith/base/text.h"
#include "megalith/config/validate_internal.h"

namespace megalith::config {
namespace {

// pretrain reads exactly one source.
void check_indexed_source(const TrainingArguments& args, Problems& problems) {
  const IndexedDataConfig& data = args.indexed;
  const bool per_split = !data.train_data_path.empty() || !data.valid_data_path.empty() || !data.test_data_path.empty();
  // Prefixes per split count once, whichever of the three are given.
  const int sources = (data.mock_data ? 1 : 0) + (data.data_path.empty() ? 0 : 1) + (per_split ? 1 : 0) +
                      (data.data_args_path ? 1 : 0) + (data.per_split_data_args_path ? 1 : 0);
  problems.require(sources == 1,
                   "{} data sources are given; give exactly one of data_path, train_data_path with valid_data_path and "
                   "test_data_path, data_args_path, per_split_data_args_path, mock_data",
                   sources);
  problems.require(!per_split || !data.split, "split cuts data_path; leave it out with train_data_path");
}

// Rules between options of LLaMA-Factory's data, and with the stage.
void check_dataset(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const DataConfig& data = args.data;
  if (args.dialect == Dialect::kTrain && context.needs_inputs) {
    problems.require(args.source.model_name_or_path.has_value(),
                     "model_name_or_path is not given; set it to the folder of a Hugging Face model");
    problems.require(!data.dataset.empty() || data.tokenized_path,
                     "dataset is not given; set it to names in dataset_info.json or to paths");
  }
  // Masks and neat packing work on turns, which only conversations have.
  const bool sft = args.run.stage == Stage::kSft;
  problems.require(!data.train_on_prompt || !data.mask_history,
                   "train_on_prompt and mask_history exclude each other; keep one");
  problems.require((!data.train_on_prompt && !data.mask_history) || sft,
                   "train_on_prompt and mask_history belong to stage sft");
  problems.require(!data.neat_packing || sft || args.run.stage == Stage::kClassify,
                   "neat_packing belongs to stages sft and cls");
  // A stream is read once, in order, and its length is unknown until it ends.
  problems.require(!data.streaming || args.run.max_steps > 0, "streaming needs max_steps: the data has no length");
  problems.require(!data.streaming || !data.max_samples, "streaming and max_samples exclude each other; keep one");
  problems.require(!data.streaming || data.val_size == 0 || data.val_size >= 1,
                   "streaming takes val_size as a number of records, not as a fraction");
  const bool grouped =
      args.sampler.group_by_length || args.sampler.train_sampling_strategy == SamplingStrategy::kGroupByLength;
  problems.require(!grouped || !data.streaming,
                   "group_by_length and streaming exclude each other: the lengths of a stream are not known");
  problems.require(!grouped || !args.sampler.disable_shuffling,
                   "group_by_length and disable_shuffling exclude each other; keep one");
  problems.require(!args.logging.generate_samples_every || !data.streaming || args.logging.generate_samples_prompts ||
                       !data.eval_dataset.empty() || data.val_size > 0,
                   "generate_samples_every takes prompts from samples that can be read by number, which those of a "
                   "stream cannot; set generate_samples_prompts to a file of prompts");
  problems.require(!data.streaming || !data.tokenized_path,
                   "streaming and tokenized_path exclude each other; keep one");
  problems.require(data.val_size == 0 || data.eval_dataset.empty(),
                   "val_size and eval_dataset both set the evaluation data; keep one");
  problems.require(data.val_size == 0 || !data.dataset.empty() || !context.needs_inputs, "val_size needs dataset");
  problems.require(data.val_size < 1 || data.val_size == std::floor(data.val_size),
                   "val_size {} is neither a fraction below 1 nor a whole number of records", data.val_size);
}

// Tokens that a run adds to the tokenizer.
void check_new_tokens(const ModelSourceConfig& source, Problems& problems) {
  std::set<std::string> seen;
  for (const auto& [name, tokens] :
       {std::pair("add_tokens", &source.add_tokens), std::pair("add_special_tokens", &source.add_special_tokens)})
    for (const std::string& token : *tokens)
      problems.require(seen.insert(token).second,
                       "{} names the token \"{}\" again; give each token once, in add_tokens or in add_special_tokens",
                       name, token);
}

// The probabilities are relative weights: they need not add up to 1.
void check_interleaving(const TrainingArguments& args, Problems& problems) {
  const DataConfig& data = args.data;
  if (data.interleave_probs.empty()) return;
  problems.require(data.mix_strategy != MixStrategy::kConcat,
                   "interleave_probs needs mix_strategy interleave_under, interleave_over or interleave_once");
  problems.require(data.interleave_probs.size() == data.dataset.size(),
                   "interleave_probs has {} values for {} datasets; give one each", data.interleave_probs.size(),
                   data.dataset.size());
  for (const std::string& probability : data.interleave_probs)
    problems.require(parse_double(probability).value_or(-1) >= 0, "interleave_probs: \"{}\" is not a probability",
                     probability);
}

// For the stages whose loss compares whole answers.
void check_answers(const TrainingArguments& args, Problems& problems) {
  const PreferenceConfig& preference = args.preference;
  const std::string_view stage = choice_name(args.run.stage);
  const bool pairs = args.run.stage == Stage::kDpo;
  problems.require(!args.data.packing.value_or(false) && !args.data.sequence_packing,
                   "packing does not work with stage {}: rows are {}", stage, pairs ? "pairs" : "single answers");
  problems.require(!args.ddp.calculate_per_token_loss,
                   "calculate_per_token_loss does not work with stage {}: its loss is a mean over {}", stage,
                   pairs ? "pairs" : "answers");
  problems.require(
      !args.optimizer.neftune_noise_alpha.value_or(0),
      "neftune_noise_alpha does not work with stage {}, whose loss compares log-probabilities of two models", stage);
  problems.require(args.optimizer.label_smoothing_factor == 0,
                   "label_smoothing_factor does not work with stage {}, whose loss is not cross-entropy{}", stage,
                   pairs ? "; see dpo_label_smoothing" : "");
  problems.require(preference.ref_model_adapters.empty() || preference.ref_model, "ref_model_adapters needs ref_model");
  problems.require(!preference.precompute_ref_log_probs || !args.data.streaming,
                   "precompute_ref_log_probs and streaming exclude each other: a stream is not read ahead");
}

// For stage kto: options of the losses of pairs would be ignored silently.
void check_verdicts(const TrainingArguments& args, Problems& problems) {
  const PreferenceConfig& preference = args.preference;
  problems.require(preference.loss == PrefLoss::kSigmoid,
                   "pref_loss {} is a loss of pairs; leave it out with stage kto", choice_name(preference.loss));
  problems.require(preference.label_smoothing == 0,
                   "dpo_label_smoothing is for pairs whose answers may be swapped; leave it out with stage kto");
  problems.require(!preference.ld_alpha, "ld_alpha compares the answers of a pair; leave it out with stage kto");
  problems.require(args.data.preprocessing_batch_size > 1,
                   "preprocessing_batch_size is {}; stage kto compares the answers of a batch of records with one "
                   "another, so it must be at least 2",
                   args.data.preprocessing_batch_size);
}

// For stage dpo, whose rows are pairs of answers.
void check_preferences(const TrainingArguments& args, Problems& problems) {
  const PreferenceConfig& preference = args.preference;
  problems.require((preference.loss != PrefLoss::kIpo && preference.loss != PrefLoss::kSppoHard) || preference.beta > 0,
                   "pref_loss {} divides by pref_beta; it must be positive", choice_name(preference.loss));
  problems.require(preference.loss != PrefLoss::kDiscopop || preference.discopop_tau > 0,
                   "pref_loss discopop divides by discopop_tau; it must be positive");
  problems.require(preference.loss != PrefLoss::kExoPair || preference.label_smoothing > 0,
                   "pref_loss exo_pair takes the logarithm of dpo_label_smoothing; set it, for example to 0.001");
  const bool reference = needs_reference(preference.loss);
  problems.require(reference || (!preference.ref_model && !preference.precompute_ref_log_probs),
                   "pref_loss {} has no reference model; leave out ref_model and precompute_ref_log_probs",
                   choice_name(preference.loss));
}

// Weights in 4 or 8 bits lie below an adapter and take no updates themselves.
void check_quantization(const TrainingArguments& args, Problems& problems) {
  const LoraConfig& lora = args.lora;
  problems.require(
      lora.quantization_bit == 4 || (lora.quantization_type == QuantizationType::kNf4 && lora.double_quantization),
      "quantization_type and double_quantization need quantization_bit 4: weights in 8 bits have one kind of values and"
      " one scale per row; leave them out");
  if (!lora.quantization_bit) return;
  const int bits = *lora.quantization_bit;
  problems.require(bits == 4 || bits == 8, "quantization_bit is {}; set 4 or 8, or leave it out", bits);
  problems.require(args.run.finetuning_type == FinetuningType::kLora,
                   "quantization_bit keeps frozen weights in {} bits, on which only an adapter can be trained; set"
                   " finetuning_type lora",
                   bits);
  problems.require(!args.precision.fp8,
                   "quantization_bit and fp8 exclude each other: weights in {} bits are multiplied in the dtype of the"
                   " run; leave out one of them",
                   bits);
  problems.require(
      lora.adapter_name_or_path.size() < 2 && !(lora.create_new_adapter && !lora.adapter_name_or_path.empty()),
      "quantization_bit takes one adapter, which is trained further: others would have to be merged into"
      " weights in {} bits. Merge them into the model with `megalith convert --adapter_path` first",
      bits);
  problems.require(!args.save.merged_model,
                   "save_merged_model does not work with quantization_bit: weights in {} bits take no update. Merge the"
                   " adapter into the original weights: megalith convert --checkpoint_path BASE --adapter_path"
                   " OUTPUT_DIR",
                   bits);
  problems.require(
      !args.preference.precompute_ref_log_probs || args.preference.ref_model,
      "precompute_ref_log_probs loads the reference without an adapter, and so not in {} bits; leave it out"
      " with quantization_bit, or give a ref_model",
      bits);
}

// A teacher needs labels of single sequences; without one, its options would be ignored silently.
void check_distillation(const TrainingArguments& args, Problems& problems) {
  const DistillationConfig& how = args.distillation;
  if (!how.teacher && !how.files) {
    problems.require(how == DistillationConfig{},
                     "kd_loss, kd_beta, kd_temperature, kd_ratio, kd_top_k and kd_tail need a teacher; give"
                     " teacher_model_name_or_path or teacher_logits_path");
    return;
  }
  const char* name = how.files ? "teacher_logits_path" : "teacher_model_name_or_path";
  problems.require(!how.teacher || !how.files,
                   "teacher_logits_path takes the place of a teacher, so that teacher_model_name_or_path would have no"
                   " effect; leave out one of them");
  problems.require(how.files || (!how.top_k && how.tail),
                   "kd_top_k and kd_tail are for teacher_logits_path; a teacher beside the model is compared over the"
                   " whole vocabulary");
  problems.require(!how.files || !args.data.streaming,
                   "teacher_logits_path does not work with streaming: the samples are compared with the files before"
                   " step 1. Leave out streaming");
  problems.require(args.dialect == Dialect::kTrain, "{} works with `megalith train` only; pretrain has no teacher",
                   name);
  problems.require(args.run.stage == Stage::kPretrain || args.run.stage == Stage::kSft,
                   "{} does not work with stage {}; use pt or sft", name, choice_name(args.run.stage));
  problems.require(how.temperature > 0, "kd_temperature is 0, but logits are divided by it; use a positive number");
  problems.require(how.ratio > 0,
                   "kd_ratio is 0, so the teacher would have no effect; use a number above 0, or leave out {}", name);
  problems.require(how.loss == KdLoss::kJsd || how.beta == DistillationConfig{}.beta,
                   "kd_beta belongs to kd_loss jsd, not {}", choice_name(how.loss));
}

// The same for options of finetuning_type freeze. Names of modules are checked later, against the model.
void check_frozen_layers(const TrainingArguments& args, Problems& problems) {
  const FreezeConfig &freeze = args.freeze, defaults;
  if (args.run.finetuning_type != FinetuningType::kFreeze) {
    const auto needs = [&](bool given, const char* name) {
      problems.require(!given, "{} needs finetuning_type freeze", name);
    };
    needs(freeze.layers != defaults.layers, "freeze_trainable_layers");
    needs(freeze.modules != defaults.modules, "freeze_trainable_modules");
    needs(!freeze.extra.empty(), "freeze_extra_modules");
    needs(freeze.llama_pro, "use_llama_pro");
    return;
  }
  const bool any = freeze.layers != 0 && !freeze.modules.empty();
  problems.require(any || !freeze.extra.empty(),
                   "freeze_trainable_layers is {} and freeze_trainable_modules has {} names, which leaves nothing to"
                   " train; choose layers, or name modules in freeze_extra_modules",
                   freeze.layers, freeze.modules.size());
  problems.require(!freeze.llama_pro || freeze.layers > 0,
                   "freeze_trainable_layers is {}; with use_llama_pro it must be at least 1", freeze.layers);
  problems.require(
      !args.towers.freeze_language_model,
      "freeze_language_model freezes the layers that finetuning_type freeze trains; leave out one of them");
  problems.require(!args.precision.fp8_param,
                   "fp8_param keeps trained weights in fp8, but finetuning_type freeze freezes most of them; leave out"
                   " one of the two");
}

// PiSSA takes a part of each weight into the adapter.
void check_principal_start(const TrainingArguments& args, Problems& problems) {
  const LoraConfig& lora = args.lora;
  const PreferenceConfig& preference = args.preference;
  problems.require(!lora.pissa_convert || lora.pissa_init || !lora.adapter_name_or_path.empty(),
                   "pissa_convert needs pissa_init, or an adapter in adapter_name_or_path that was started so");
  if (!lora.pissa_init) {
    problems.require(lora.pissa_iter == 16, "pissa_iter needs pissa_init");
    return;
  }
  problems.require(args.run.finetuning_type == FinetuningType::kLora, "pissa_init needs finetuning_type lora");
  problems.require(!lora.quantization_bit,
                   "pissa_init takes principal parts off the weights, which quantization_bit keeps as they are; leave"
                   " out one of them");
  problems.require(lora.adapter_name_or_path.empty() || lora.create_new_adapter,
                   "pissa_init starts a new adapter, and adapter_name_or_path continues one; set create_new_adapter to"
                   " merge it and start a new one, or leave out one of them");
  const bool below =
      needs_reference(args.run.stage, preference.loss) && !preference.ref_model && !preference.precompute_ref_log_probs;
  problems.require(!below,
                   "pissa_init does not work with a reference below the adapter, where only the rest of the weights is;"
                   " set ref_model to the model, or precompute_ref_log_probs");
}

// Options of adapters without finetuning_type lora would be ignored silently.
void check_adapters(const TrainingArguments& args, Problems& problems) {
  const LoraConfig& lora = args.lora;
  const bool is_lora = args.run.finetuning_type == FinetuningType::kLora;
  problems.require(is_lora || lora.adapter_name_or_path.empty(), "adapter_name_or_path needs finetuning_type lora");
  problems.require(is_lora || !lora.use_rslora, "use_rslora needs finetuning_type lora");
  problems.require(is_lora || !lora.use_dora, "use_dora needs finetuning_type lora");
  problems.require(!lora.use_dora || !args.precision.fp8,
                   "use_dora does not work with fp8: norms of weights are taken in the type of the model; leave out one"
                   " of them");
  problems.require(is_lora || !lora.loraplus_lr_ratio, "loraplus_lr_ratio needs finetuning_type lora");
  problems.require(is_lora || !lora.create_new_adapter, "create_new_adapter needs finetuning_type lora");
  problems.require(!is_lora || lora.dropout < 1, "lora_dropout is {}; it must be below 1", lora.dropout);
  problems.require(!is_lora || !lora.target.empty() || !lora.additional_target.empty(),
                   "lora_target is empty; name modules, or all");
  check_quantization(args, problems);
  check_principal_start(args, problems);
  check_frozen_layers(args, problems);
  const PreferenceConfig& preference = args.preference;
  problems.require(preference.label_smoothing == 0 || smooths_pairs(preference.loss),
                   "dpo_label_smoothing needs pref_loss sigmoid, robust, exo_pair, aot or aot_unpaired, not {}",
                   choice_name(preference.loss));
  problems.require(!preference.ld_alpha || needs_reference(preference.loss),
                   "ld_alpha is for losses with a reference model, not for pref_loss {}", choice_name(preference.loss));
  problems.require(preference.loss != PrefLoss::kRobust || preference.label_smoothing < 0.5,
                   "pref_loss robust divides by 1 - 2 * dpo_label_smoothing; it must be below 0.5");
  if (args.run.stage == Stage::kDpo || args.run.stage == Stage::kKto) check_answers(args, problems);
  if (args.run.stage == Stage::kDpo) check_preferences(args, problems);
  if (args.run.stage == Stage::kKto) check_verdicts(args, problems);
  check_distillation(args, problems);
}

// Above 1 it is a number of steps, below 1 a fraction of all steps.
void check_interval(const char* name, Interval strategy, double steps, Problems& problems) {
  if (strategy != Interval::kSteps) return;
  problems.require(steps > 0, "{} is 0; set it to a number of steps, or to a fraction of all steps below 1", name);
  problems.require(steps <= 1 || steps == std::floor(steps), "{} {} must be whole when it is more than 1", name, steps);
}

// To end with the best model, every checkpoint must have been evaluated.
void check_evaluation(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const EvalConfig& eval = args.eval;
  const bool evaluates = eval.strategy != Interval::kNo;
  // eval_steps defaults to logging_steps, as derive() will decide.
  const double eval_steps = eval.steps.value_or(0) > 0 ? *eval.steps : args.logging.steps;
  check_interval("logging_steps", args.logging.strategy, args.logging.steps, problems);
  check_interval("eval_steps", eval.strategy, eval_steps, problems);
  if (args.dialect == Dialect::kTrain && context.needs_inputs)
    problems.require((!evaluates && !args.run.do_eval) || args.data.val_size > 0 || !args.data.eval_dataset.empty(),
                     "evaluation needs eval_dataset or val_size");
  problems.require(!eval.compute_accuracy || !args.fusion.cross_entropy_loss,
                   "compute_accuracy needs logits, which cross_entropy_loss_fusion never computes as a whole; leave out"
                   " one of them");
  if (args.run.early_stopping_steps)
    problems.require(evaluates && eval.metric_for_best_model,
                     "early_stopping_steps needs eval_strategy and metric_for_best_model");
  if (!eval.load_best_model_at_end || args.save.strategy == Interval::kBest) return;
  problems.require(evaluates && eval.strategy == args.save.strategy,
                   "load_best_model_at_end needs an evaluation of every checkpoint: set eval_strategy and save_strategy"
                   " to the same interval, or save_strategy to best");
  if (eval.strategy != Interval::kSteps || !args.save.steps) return;
  // Both may be fractions of the run; a tolerance absorbs what 0.2 / 0.1 loses, and a fraction is not comparable with
  // a number of steps.
  const double ratio = *args.save.steps / eval_steps;
  problems.require(std::abs(ratio - std::round(ratio)) < 1e-9 && (*args.save.steps < 1) == (eval_steps < 1),
                   "load_best_model_at_end needs save_steps {} to be a multiple of eval_steps {}", *args.save.steps,
                   eval_steps);
}

// A local checkpoint is the whole state of a run: it has no parts that could be left out, and no model of its own.
void check_local_checkpoints(const CheckpointConfig& checkpoint, Problems& problems) {
  const bool local = checkpoint.non_persistent_type == "local";
  problems.require(!local || checkpoint.non_persistent_local_dir,
                   "non_persistent_ckpt_type local needs non_persistent_local_ckpt_dir: a folder on each machine");
  problems.require(local || !checkpoint.non_persistent_local_dir,
                   "non_persistent_local_ckpt_dir needs non_persistent_ckpt_type local");
  problems.require(!local || !(checkpoint.no_load_optim || checkpoint.no_load_rng || checkpoint.use_checkpoint_args),
                   "non_persistent_ckpt_type local continues with the whole state of a run; leave out {}",
                   checkpoint.no_load_optim ? "no_load_optim"
                   : checkpoint.no_load_rng ? "no_load_rng"
                                            : "use_checkpoint_args");
  problems.require(!checkpoint.replication || local,
                   "replication copies local checkpoints; it needs"
                   " non_persistent_ckpt_type local");
  problems.require(!checkpoint.replication || checkpoint.replication_jump,
                   "replication needs replication_jump: the distance between ranks that keep copies for each other,"
                   " usually the number of ranks of a machine");
}

// `train` continues from output_dir by other rules; see resume_from_checkpoint.
void check_non_persistent(const TrainingArguments& args, Problems& problems) {
  const CheckpointConfig& checkpoint = args.checkpoint;
  check_local_checkpoints(checkpoint, problems);
  if (!checkpoint.non_persistent_interval && !checkpoint.non_persistent_type && !checkpoint.non_persistent_dir) return;
  problems.require(args.dialect == Dialect::kPretrain,
                   "non-persistent checkpoints belong to `pretrain`; use save_steps with save_total_limit");
  problems.require(!checkpoint.non_persistent_interval || checkpoint.non_persistent_type,
                   "non_persistent_save_interval needs non_persistent_ckpt_type: global or local");
  problems.require(!checkpoint.non_persistent_dir || checkpoint.non_persistent_type == "global",
                   "non_persistent_global_ckpt_dir needs non_persistent_ckpt_type global");
  problems.require(!checkpoint.non_persistent_interval || args.save.output_dir,
                   "non_persistent_save_interval needs save: the folder of the run");
}

// Retained checkpoints are a subset of the saved ones, so their interval must be a multiple.
void check_saving(const TrainingArguments& args, Problems& problems) {
  const SaveConfig& save = args.save;
  if (args.dialect == Dialect::kTrain)
    check_interval("save_steps", save.strategy, save.steps.value_or(0), problems);
  else
    problems.require(!save.output_dir || save.steps.value_or(0) > 0, "save needs save_interval: how often to save");
  problems.require(save.strategy != Interval::kBest || args.eval.metric_for_best_model,
                   "save_strategy best needs metric_for_best_model");
  if (save.retain_interval)
    problems.require(
        save.steps.value_or(0) > 0 && std::fmod(static_cast<double>(*save.retain_interval), *save.steps) == 0,
        "save_retain_interval {} is not a multiple of save_interval", *save.retain_interval);
  problems.require(!args.fault.calc_ft_timeouts || save.output_dir,
                   "calc_ft_timeouts needs {}: the folder that keeps what is learned",
                   args.dialect == Dialect::kTrain ? "output_dir" : "save");
  const CheckpointConfig& checkpoint = args.checkpoint;
  check_non_persistent(args, problems);
  problems.require(!checkpoint.load_main_params || checkpoint.no_load_optim,
                   "load_main_params_from_ckpt needs no_load_optim");
  problems.require(
      !checkpoint.load_main_params || !checkpoint.finetune,
      "load_main_params_from_ckpt and finetune exclude each other: finetune takes the checkpoint as a model"
      " and opens no optimizer state; keep one");
  problems.require(!checkpoint.override_iteration || !checkpoint.finetune,
                   "override_ckpt_iteration and finetune exclude each other; keep one");
  problems.require(!checkpoint.use_checkpoint_args || save.load || checkpoint.pretrained_checkpoint,
                   "use_checkpoint_args needs load or pretrained_checkpoint");
}

}  // namespace

void check_data(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  if (args.dialect == Dialect::kPretrain && context.needs_inputs) check_indexed_source(args, problems);
  check_dataset(args, context, problems);
  check_interleaving(args, problems);
  check_new_tokens(args.source, problems);
  problems.require(!args.sampler.dataloader_prefetch_factor || args.sampler.dataloader_num_workers > 0,
                   "dataloader_prefetch_factor needs dataloader_num_workers > 0");
}

namespace {

// Records for the dashboard are files.
void check_records(const TrainingArguments& args, Problems& problems) {
  const LoggingConfig& logging = args.logging;
  problems.require(!logging.generate_samples_every || args.save.output_dir,
                   "generate_samples_every writes samples.jsonl into output_dir, which is not given; set output_dir");
  problems.require(!logging.generate_samples_prompts || logging.generate_samples_every,
                   "generate_samples_prompts is given, but not how often they are continued; set "
                   "generate_samples_every to a number of steps");
  problems.require(!logging.log_histograms_interval || args.save.output_dir,
                   "log_histograms_interval writes histograms.jsonl into output_dir, which is not given; set "
                   "output_dir");
}

}  // namespace

void check_run(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  check_adapters(args, problems);
  check_evaluation(args, context, problems);
  check_saving(args, problems);
  for (int64_t iteration : args.run.iterations_to_skip)
    problems.require(iteration >= 1, "iterations_to_skip counts from 1; {} is not an iteration", iteration);
  problems.require(!args.logging.profile || args.logging.profile_step_start < args.logging.profile_step_end,
                   "profile_step_start {} must be less than profile_step_end {}", args.logging.profile_step_start,
                   args.logging.profile_step_end);
  check_records(args, problems);
}

}  // namespace megalith::config
