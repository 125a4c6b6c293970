// How a run is laid out over ranks: sizes, pipeline, batch, seeds, communication.
//
// An optional size without a value means "take it from the checkpoint's config, else 1"; derive() fills it in.
//
// Each member is an option: options/parallel.cc gives its name, its range and its meaning, and docs/options.md shows
// them. Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"

namespace megalith::config {

// Sizes of the rank grid. Dense layers see the axes tp, cp, dp and pp, experts the axes etp, ep, edp and pp; both
// grids cover the same ranks (layout/rank_grid.h). An option that is not given keeps std::nullopt until derive().
struct ParallelConfig {
  // tp * cp * pp * dp = etp * ep * pp * edp = the number of ranks. dp and edp follow from the others.
  std::optional<int> tp;
  std::optional<int> pp;
  std::optional<int> cp;
  std::optional<int> ep;
  std::optional<int> etp;
  bool sequence_parallel = false;
  // Context parallelism: how keys and values travel, and in how many levels.
  std::vector<int> hierarchical_cp_sizes;  // empty means one level
  std::vector<std::string> cp_comm_type;
  // Groups of ranks and their numbering.
  int num_distributed_optimizer_instances = 1;
  bool use_tp_pp_dp_mapping = false;
  bool tp_comm_overlap = false;  // needs sequence_parallel
  std::optional<int> tp_comm_overlap_slices;
  bool operator==(const ParallelConfig&) const = default;
};

// The assignment of layers to stages, and the schedule. A stage is one chunk of consecutive layers; with virtual
// stages a rank has several chunks, and chunk v of rank r is stage v * pp + r.
struct PipelineConfig {
  // Three ways to ask for virtual stages; derive() leaves only vpp.
  std::optional<int> vpp;  // never 1: the parser unsets it
  std::optional<std::string> layout;
  std::optional<int> layers_per_virtual_stage;
  // Uneven splits: fewer layers where the embedding and the head are.
  std::optional<int> first_stage_layers;  // over all its chunks
  std::optional<int> last_stage_layers;   // over all its chunks
  std::optional<bool> account_for_embedding;
  std::optional<bool> account_for_loss;
  // The order of work, and its messages.
  std::optional<layout::ScheduleKind> schedule;
  std::optional<int> microbatch_group_size;
  bool overlap_p2p_comm = true;
  bool overlap_p2p_warmup_flush = false;
  bool variable_seq_lengths = false;
  bool defer_embedding_wgrad_compute = false;
  int wgrad_deferral_limit = 0;
  bool operator==(const PipelineConfig&) const = default;
};

// Micro-batches and global batch. A micro-batch passes through the model at once; a step sums the gradients of several.
struct BatchConfig {
  // A step has micro_batch_size * dp * gradient_accumulation_steps sequences, or global_batch_size if that is given.
  std::optional<int> micro_batch_size = 8;
  int gradient_accumulation_steps = 1;
  std::optional<int> global_batch_size;
  // Batches that grow during the run: {start, increment, samples}, or a list of thresholds.
  std::vector<int64_t> rampup_batch_size;
  std::optional<std::string> step_batch_schedule;
  bool decrease_batch_size_if_needed = false;
  std::optional<int> eval_micro_batch_size = 8;
  std::optional<int> eval_global_batch_size;
  bool operator==(const BatchConfig&) const = default;
};

// Random numbers. With equal seeds a run draws the same weights and the same order of samples in every layout; dropout
// differs between layouts (layout/rng_seeds.h).
struct SeedConfig {
  int64_t seed = 42;
  std::optional<int64_t> data_seed;
  bool data_parallel_random_init = false;
  bool full_determinism = false;
  bool operator==(const SeedConfig&) const = default;
};

// Transport, time limits and device. Limits are in the unit that the option's reference uses, as the names say;
// run/resolve/runtime_settings.h turns them into durations.
struct CommConfig {
  // std::nullopt follows the device: nccl on GPUs, gloo on CPUs.
  std::optional<CommBackend> backend;
  int ddp_timeout_s = 1800;
  std::optional<int> distributed_timeout_minutes;
  std::optional<int> timeout_after_first_iteration_s;
  std::optional<int> store_connect_timeout_s;
  bool use_cpu = false;
  bool use_gloo_process_groups = true;
  // Tuning of NCCL.
  std::optional<std::string> nccl_communicator_config_path;
  std::optional<std::vector<std::string>> high_priority_stream_groups;
  bool use_sharp = false;
  bool operator==(const CommConfig&) const = default;
};

}  // namespace megalith::config
