// The run around the model: what is done and for how long; what is logged, evaluated and saved; adapters, preferences.
//
// Each member is an option: options/run.cc, logging.cc, checkpoint.cc and adapter.cc give its name, its range and its
// meaning, and docs/options.md shows them. Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/config/value.h"

namespace megalith::config {

// The task of a run, and its end.
struct RunConfig {
  Stage stage = Stage::kSft;
  FinetuningType finetuning_type = FinetuningType::kLora;
  // train: neither means training. pretrain: skip_train alone decides.
  bool do_train = false;
  bool do_eval = false;
  bool skip_train = false;
  // The length of the run; validate() checks that it is given in one unit.
  double num_train_epochs = 3.0;
  int64_t max_steps = -1;
  std::optional<int64_t> train_samples;
  std::vector<int64_t> iterations_to_skip;
  // Reasons to end early.
  std::optional<int64_t> exit_interval;
  std::optional<int64_t> exit_duration_mins;
  bool exit_signal_handler = false;
  std::optional<int> early_stopping_steps;
  bool operator==(const RunConfig&) const = default;
};

// Logs, metrics and profiles. `steps` of 1 or more counts steps; below 1 it is a fraction of the run, as for
// evaluation and saving.
struct LoggingConfig {
  Interval strategy = Interval::kSteps;
  double steps = 500;
  bool first_step = false;
  bool nan_inf_filter = true;
  std::string level = "passive";
  std::vector<std::string> report_to{"none"};
  std::optional<std::string> run_name;
  std::optional<std::string> logging_dir;
  TokensSeen include_num_input_tokens_seen = TokensSeen::kNo;
  bool include_effective_tokens_per_second = false;
  // Megatron's measurements.
  int timing_log_level = 0;
  std::string timing_log_option = "minmax";
  int tensorboard_log_interval = 1;
  bool log_energy = false;
  bool log_progress = false;
  bool log_throughput = false;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  // A trace of the steps from start to end, on some ranks.
  bool profile = false;
  int64_t profile_step_start = 10;
  int64_t profile_step_end = 12;
  std::vector<int> profile_ranks{0};
  // Texts that the model writes on the way, and distributions of weights and gradients.
  std::optional<int64_t> generate_samples_every;
  std::optional<std::string> generate_samples_prompts;
  int64_t generate_samples_max_new_tokens = 64;
  std::optional<int64_t> log_histograms_interval;
  bool operator==(const LoggingConfig&) const = default;
};

// When and how a run is evaluated.
struct EvalConfig {
  Interval strategy = Interval::kNo;
  std::optional<double> steps;
  double delay = 0;
  bool on_start = false;
  int64_t eval_iters = 100;
  bool prediction_loss_only = false;
  bool compute_accuracy = false;
  // The best checkpoint, by one metric of evaluation.
  bool load_best_model_at_end = false;
  std::optional<std::string> metric_for_best_model;
  std::optional<bool> greater_is_better;
  bool operator==(const EvalConfig&) const = default;
};

// When checkpoints and models are written. Everything of a run lies below output_dir; without it (pretrain only)
// nothing is written.
struct SaveConfig {
  std::optional<std::string> output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  // The checkpoint to continue: of `train`, of `pretrain`.
  std::optional<std::string> resume_from_checkpoint;
  std::optional<std::string> load;
  Interval strategy = Interval::kSteps;
  std::optional<double> steps = 500;
  // Checkpoints that are kept.
  std::optional<int> total_limit;
  std::optional<int64_t> retain_interval;
  bool only_model = false;
  bool hf_model = false;
  bool merged_model = false;
  bool operator==(const SaveConfig&) const = default;
};

// How checkpoints are written and read. There is one format, which every layout reads; members about other formats
// exist so that scripts of the reference run unchanged.
struct CheckpointConfig {
  std::string format = "legacy";
  bool async_save = false;
  std::string files = "shared";
  std::string strictness = "assume_ok_unexpected";
  bool fully_parallel_save = true;
  bool fully_parallel_load = false;
  bool d2h_non_blocking = false;
  bool fully_reshardable = false;
  bool fully_reshardable_mem_efficient = false;
  // Parts that are left out when saving and when loading.
  bool no_save_optim = false;
  bool no_save_rng = false;
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool finetune = false;
  bool exit_on_missing_checkpoint = false;
  // The checkpoint to load, and the iteration to count from.
  std::optional<int64_t> ckpt_step;
  std::optional<int64_t> override_iteration;
  bool use_checkpoint_args = false;
  bool load_main_params = false;
  std::optional<std::string> pretrained_checkpoint;
  // Checkpoints between those of save_interval, of which the newest is kept.
  std::optional<int64_t> non_persistent_interval;
  std::optional<std::string> non_persistent_type;
  std::optional<std::string> non_persistent_dir;
  std::optional<std::string> non_persistent_local_dir;
  std::string non_persistent_local_algo = "atomic";
  // Copies of local checkpoints on other machines.
  bool replication = false;
  std::optional<int> replication_jump;
  int replication_factor = 2;
  bool operator==(const CheckpointConfig&) const = default;
};

// Low-rank adapters, as PEFT names them. W x + (alpha / rank) B A x, with A drawn at random and B zero at the start.
struct LoraConfig {
  int rank = 8;
  std::optional<int> alpha;
  double dropout = 0.0;
  std::vector<std::string> target{"all"};
  std::vector<std::string> additional_target;
  bool use_rslora = false;
  bool use_dora = false;
  // Adapters that the run starts from.
  bool create_new_adapter = false;
  std::vector<std::string> adapter_name_or_path;
  std::optional<std::string> adapter_folder;  // prefix of those paths
  // PiSSA: A and B start as principal parts of the weights.
  bool pissa_init = false;
  int pissa_iter = 16;
  bool pissa_convert = false;
  std::optional<double> loraplus_lr_ratio;
  double loraplus_lr_embedding = 1e-6;
  // The frozen weights below an adapter.
  std::optional<int> quantization_bit;
  QuantizationType quantization_type = QuantizationType::kNf4;
  bool double_quantization = true;
  bool operator==(const LoraConfig&) const = default;
};

// Layers that are trained with finetuning_type freeze, while all others are frozen.
struct FreezeConfig {
  int layers = 2;
  std::vector<std::string> modules{"all"};
  std::vector<std::string> extra;
  bool llama_pro = false;
  bool operator==(const FreezeConfig&) const = default;
};

// Training on preferences (DPO, ORPO, SimPO) and on verdicts (KTO).
struct PreferenceConfig {
  PrefLoss loss = PrefLoss::kSigmoid;  // formulas: train/preference/preference_loss.h
  double beta = 0.1;
  double ftx = 0.0;
  double label_smoothing = 0.0;
  double simpo_gamma = 0.5;
  double discopop_tau = 0.05;
  std::optional<double> ld_alpha;  // weight of the tokens beyond the length of the shorter answer
  // Weights of answers with verdicts.
  double kto_chosen_weight = 1.0;
  double kto_rejected_weight = 1.0;
  // The reference model; the policy at its start if none is given.
  std::optional<std::string> ref_model;
  std::vector<std::string> ref_model_adapters;
  bool precompute_ref_log_probs = false;
  bool operator==(const PreferenceConfig&) const = default;
};

// Models that score sequences: rewards (stage rm) and labels (stage cls).
struct ScoringConfig {
  std::optional<int> num_labels;  // outputs of the head; those of the model folder if it has one
  std::optional<ProblemType> problem_type;
  double center_rewards_coefficient = 0.0;
  bool operator==(const ScoringConfig&) const = default;
};

// Distillation: training towards the distributions of a teacher (train/distillation).
struct DistillationConfig {
  std::optional<std::string> teacher;
  KdLoss loss = KdLoss::kForwardKl;
  double beta = 0.5;
  double temperature = 1.0;
  double ratio = 1.0;
  std::optional<std::string> files;  // folder with logits that take the place of the teacher
  std::optional<int64_t> top_k;      // likeliest tokens of the files to use; all if not given
  bool tail = true;
  bool operator==(const DistillationConfig&) const = default;
};

// Checks of results, injected errors and slow ranks. A result is rejected if it is NaN or infinite, or far outside of
// what the run has seen before (train/faults/rerun_machine.h).
struct FaultConfig {
  RerunMode rerun_mode = RerunMode::kValidateResults;
  // Faults for tests.
  double error_injection_rate = 0;
  std::string error_injection_type = "transient_error";
  bool check_for_spiky_loss = false;
  bool check_for_large_grads = false;
  int ft_num_warmup_iters = 5;
  bool calc_ft_timeouts = false;
  bool inprocess_restart = false;
  // Slow ranks, and replicas whose weights have drifted apart.
  bool log_straggler = false;
  int straggler_ctrlr_port = 65535;
  int straggler_minmax_count = 1;
  std::optional<int64_t> check_weight_hash_interval;
  bool operator==(const FaultConfig&) const = default;
};

}  // namespace megalith::config
