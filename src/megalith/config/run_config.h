// The run around the model: what is done, for how long, what is logged, evaluated and saved, adapters and preferences.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/config/value.h"

namespace megalith::config {

struct RunConfig {
  Stage stage = Stage::kSft;                               // pt, sft or dpo
  FinetuningType finetuning_type = FinetuningType::kLora;  // lora or full
  bool do_train = false;                                   // neither this nor do_eval: train
  bool do_eval = false;                                    // only this: evaluate once
  bool skip_train = false;                                 // Megatron: evaluate only
  double num_train_epochs = 3.0;                           // unless max_steps says it
  int64_t max_steps = -1;                                  // optimizer steps; > 0 wins over epochs
  std::optional<int64_t> train_samples;                    // Megatron: length in samples
  std::vector<int64_t> iterations_to_skip;                 // 1-based: data consumed, no update
  std::optional<int64_t> exit_interval;                    // leave when the iteration is a multiple
  std::optional<int64_t> exit_duration_mins;               // leave after so many minutes
  bool exit_signal_handler = false;                        // SIGTERM: save and leave
  std::optional<int> early_stopping_steps;                 // evaluations without gain before stopping
  bool operator==(const RunConfig&) const = default;
};

struct LoggingConfig {
  Interval strategy = Interval::kSteps;                        // no, steps, epoch
  double steps = 500;                                          // every n steps; < 1: a fraction of all
  bool first_step = false;                                     // log step 1 too
  bool nan_inf_filter = true;                                  // log the running mean in place of NaN
  std::string level = "passive";                               // debug, info, warning, error, critical, passive
  std::vector<std::string> report_to{"none"};                  // none, tensorboard, wandb, all
  std::optional<std::string> run_name;                         // shown in the dashboard
  std::optional<std::string> logging_dir;                      // TensorBoard files; empty: output_dir/tensorboard
  TokensSeen include_num_input_tokens_seen = TokensSeen::kNo;  // count all tokens or those that are not padding
  bool include_effective_tokens_per_second = false;            // log it
  int timing_log_level = 0;                                    // 0..2: how many timers
  std::string timing_log_option = "minmax";                    // minmax, max, all
  int tensorboard_log_interval = 1;                            // steps between TensorBoard points
  bool log_throughput = false;                                 // TFLOP/s per device in the line
  bool log_params_norm = false;                                // norm of the parameters
  bool log_num_zeros_in_grad = false;                          // zeros in the gradients
  bool profile = false;                                        // record a trace
  int64_t profile_step_start = 10;                             // from this step
  int64_t profile_step_end = 12;                               // to this one
  std::vector<int> profile_ranks{0};                           // on these ranks
  bool operator==(const LoggingConfig&) const = default;
};

struct EvalConfig {
  Interval strategy = Interval::kNo;                 // no, steps, epoch
  std::optional<double> steps;                       // empty: logging_steps
  double delay = 0;                                  // steps or epochs before the first
  bool on_start = false;                             // once before training
  int64_t eval_iters = 100;                          // Megatron: iterations of one evaluation
  bool prediction_loss_only = false;                 // Megalith's evaluation always is
  bool load_best_model_at_end = false;               // reload the best checkpoint
  std::optional<std::string> metric_for_best_model;  // empty: loss
  std::optional<bool> greater_is_better;             // empty: unless the name ends in loss
  bool operator==(const EvalConfig&) const = default;
};

struct SaveConfig {
  std::optional<std::string> output_dir = "trainer_output";  // everything the run writes; empty (pretrain): nothing
  bool overwrite_output_dir = false;                         // start anew although there is a checkpoint
  std::optional<std::string> resume_from_checkpoint;         // folder, or true: the last in output_dir
  std::optional<std::string> load;                           // Megatron: folder whose last checkpoint is taken
  Interval strategy = Interval::kSteps;                      // no, steps, epoch, best
  std::optional<double> steps = 500;                         // every n steps; < 1: a fraction of all
  std::optional<int> total_limit;                            // checkpoints kept, besides the best
  std::optional<int64_t> retain_interval;                    // Megatron: keep these for good
  bool only_model = false;                                   // no optimizer, no RNG: not resumable
  bool hf_model = false;                                     // each checkpoint also as a Hugging Face folder
  bool merged_model = false;                                 // LoRA: export with the adapter merged
  bool operator==(const SaveConfig&) const = default;
};

struct CheckpointConfig {
  std::string format = "legacy";                     // the reference's file kind; Megalith writes its own for all
  bool async_save = false;                           // write while training goes on
  bool use_persistent_worker = false;                // one writer for the whole run
  std::string files = "shared";                      // whose files optimizer state is written into
  std::string strictness = "assume_ok_unexpected";   // what missing or unexpected keys do
  bool fully_parallel_save = true;                   // every rank writes its share
  bool fully_parallel_load = false;                  // every rank reads its share
  bool d2h_non_blocking = false;                     // copy to the host asynchronously
  bool fully_reshardable = false;                    // optimizer state free of the dp layout
  bool fully_reshardable_mem_efficient = false;      // slower, less memory
  bool no_save_optim = false;                        // leave out the optimizer
  bool no_save_rng = false;                          // leave out random states
  bool no_load_optim = false;                        // start the optimizer anew
  bool no_load_rng = false;                          // seed anew
  bool finetune = false;                             // weights only, iteration 0
  bool exit_on_missing_checkpoint = false;           // load finds nothing: stop
  std::optional<int64_t> ckpt_step;                  // this checkpoint in place of the last
  std::optional<int64_t> override_iteration;         // count from here
  bool use_checkpoint_args = false;                  // take the shape from the checkpoint
  bool load_main_params = false;                     // optimizer's fp32 copies from the file
  std::optional<std::string> pretrained_checkpoint;  // weights to start from when load is empty
  bool operator==(const CheckpointConfig&) const = default;
};

struct LoraConfig {
  int rank = 8;                                   // of the update
  std::optional<int> alpha;                       // scale = alpha / rank; empty or 0: 2 * rank
  double dropout = 0.0;                           // before A
  std::vector<std::string> target{"all"};         // module names, or all linear layers but the head
  std::vector<std::string> additional_target;     // modules trained in full: embed_tokens, lm_head, norms
  bool use_rslora = false;                        // scale = alpha / sqrt(rank)
  bool create_new_adapter = false;                // merge the given ones, start a fresh one
  std::vector<std::string> adapter_name_or_path;  // all but the last merged, the last trained on
  std::optional<std::string> adapter_folder;      // prefix of those paths
  std::optional<double> loraplus_lr_ratio;        // learning rate of B over that of A
  double loraplus_lr_embedding = 1e-6;            // of embedding adapters
  bool operator==(const LoraConfig&) const = default;
};

// Whether answers are compared with what a reference model gives them.
constexpr bool needs_reference(PrefLoss loss) { return loss != PrefLoss::kOrpo && loss != PrefLoss::kSimpo; }

struct PreferenceConfig {
  PrefLoss loss = PrefLoss::kSigmoid;           // formulas: train/preference/preference_loss.h
  double beta = 0.1;                            // strength of the preference term
  double ftx = 0.0;                             // weight of the chosen answers' sft loss
  double label_smoothing = 0.0;                 // 0..0.5, sigmoid and robust only
  double simpo_gamma = 0.5;                     // margin of simpo
  std::optional<std::string> ref_model;         // empty: the initial policy
  std::vector<std::string> ref_model_adapters;  // merged into it
  bool precompute_ref_log_probs = false;        // the reference runs once over the data, before training
  bool operator==(const PreferenceConfig&) const = default;
};

struct FaultConfig {
  RerunMode rerun_mode = RerunMode::kValidateResults;    // what a suspicious result triggers
  double error_injection_rate = 0;                       // tests: injected faults a check
  std::string error_injection_type = "transient_error";  // tests: correct_result, transient_error, persistent_error
  bool check_for_spiky_loss = false;                     // a loss 10 times the largest seen counts as suspicious
  bool check_for_large_grads = false;                    // likewise gradients
  int ft_num_warmup_iters = 5;                           // iterations before time-outs are measured
  bool log_straggler = false;                            // report slow ranks
  int straggler_ctrlr_port = 65535;                      // where that is switched at run time
  int straggler_minmax_count = 1;                        // how many it names
  std::optional<int64_t> check_weight_hash_interval;     // compare replicas every n steps
  bool operator==(const FaultConfig&) const = default;
};

}  // namespace megalith::config
