// How a run is laid out over ranks: sizes, pipeline, batch, seeds, communication.
//
// An optional size that is empty means "take it from the checkpoint's config, else 1"; derive() fills it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"

namespace megalith::config {

struct ParallelConfig {
  std::optional<int> tp;                        // ranks that split each weight matrix
  std::optional<int> pp;                        // pipeline stages
  std::optional<int> cp;                        // ranks that split each sequence
  std::optional<int> ep;                        // ranks that split the experts
  std::optional<int> etp;                       // ranks that split each expert's matrices; empty: tp
  bool sequence_parallel = false;               // split norms and dropouts over tp along the tokens; needs tp > 1
  std::vector<int> hierarchical_cp_sizes;       // levels of a2a+p2p context parallelism, product = cp; empty: one level
  std::vector<std::string> cp_comm_type;        // p2p, a2a, all_gather or a2a+p2p; one for all layers or one a layer
  int num_distributed_optimizer_instances = 1;  // replicas of the sharded optimizer state over dp-cp
  bool use_tp_pp_dp_mapping = false;            // rank order tp-cp-ep-pp-dp in place of tp-cp-ep-dp-pp
  bool tp_comm_overlap = false;                 // overlap tp collectives with matrix products; needs sequence_parallel
  bool operator==(const ParallelConfig&) const = default;
};

struct PipelineConfig {
  std::optional<int> vpp;                        // model chunks per pipeline rank; never 1 (the parser unsets it)
  std::optional<std::string> layout;             // stages split by '|': E embedding, t layer, m MTP, L loss
  std::optional<int> layers_per_virtual_stage;   // Megatron's other way to set vpp
  std::optional<int> first_stage_layers;         // layers of the first rank, all its chunks
  std::optional<int> last_stage_layers;          // layers of the last rank, all its chunks
  std::optional<bool> account_for_embedding;     // count the embedding as one layer when splitting
  std::optional<bool> account_for_loss;          // count the head and loss as one layer when splitting
  std::optional<layout::ScheduleKind> schedule;  // empty: 1f1b, or interleaved with virtual stages
  std::optional<int> microbatch_group_size;      // micro-batches a chunk runs in a row; empty: pp
  bool overlap_p2p_comm = true;                  // interleaved schedule: receive one step ahead
  bool overlap_p2p_warmup_flush = false;         // also in warm-up and flush
  bool variable_seq_lengths = false;             // micro-batches of one step may differ in length
  bool defer_embedding_wgrad_compute = false;    // run the head's weight gradient in the pipeline flush
  int wgrad_deferral_limit = 0;                  // micro-batches deferred at most; 0: all
  bool operator==(const PipelineConfig&) const = default;
};

struct BatchConfig {
  std::optional<int> micro_batch_size = 8;         // sequences in one forward pass of one data-parallel rank
  int gradient_accumulation_steps = 1;             // micro-batches a step, unless global_batch_size says it
  std::optional<int> global_batch_size;            // sequences a step over all ranks; empty: micro * dp * accumulation
  std::vector<int64_t> rampup_batch_size;          // start, increment, ramp samples; empty: none
  std::optional<std::string> step_batch_schedule;  // "0:768 250B:1536": tokens at which a batch size starts
  bool decrease_batch_size_if_needed = false;      // round down to a multiple of micro * dp
  std::optional<int> eval_micro_batch_size = 8;    // sequences in one evaluation pass; empty: as training
  std::optional<int> eval_global_batch_size;       // sequences an evaluation iteration; empty: as training
  bool operator==(const BatchConfig&) const = default;
};

struct SeedConfig {
  int64_t seed = 42;                       // positive; everything random follows from it
  std::optional<int64_t> data_seed;        // sample order only; empty: seed
  bool data_parallel_random_init = false;  // data-parallel ranks draw different numbers (seed + 10 * dp rank)
  bool full_determinism = false;           // the same bits in every run on GPUs, too
  bool operator==(const SeedConfig&) const = default;
};

struct CommConfig {
  std::optional<CommBackend> backend;                  // empty: nccl with CUDA, else gloo
  int ddp_timeout_s = 1800;                            // time limit of a collective
  std::optional<int> distributed_timeout_minutes;      // the same in Megatron's unit; wins when set
  std::optional<int> timeout_after_first_iteration_s;  // another limit once the first iteration is through
  std::optional<int> store_connect_timeout_s;  // to reach the store at the start; empty: 60, several machines 600
  bool use_cpu = false;                        // train on the CPU although there is a GPU
  bool use_gloo_process_groups = true;         // host-side twins of the data-parallel groups
  std::optional<std::string> nccl_communicator_config_path;             // a file that tunes NCCL by group
  std::optional<std::vector<std::string>> high_priority_stream_groups;  // empty: tp, cp, ep, pp
  bool use_sharp = false;                                               // gradients are reduced in the switches
  bool operator==(const CommConfig&) const = default;
};

}  // namespace megalith::config
