// Predicts the seconds of a training step, part by part, from the speeds of a cluster.
//
//   compute      matrix products by their sizes, attention, operations that only move memory, recomputation
//   exposed      communication that computation does not hide: tensor-parallel collectives, rings of context
//                parallelism, all-to-all of experts, messages between stages, reduction of gradients and gathering of
//                parameters
//   bubble       idle time of the schedule, from its timeline
//   optimizer    the update of the elements that a rank owns
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "megalith/layout/pipeline_schedule.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Seconds of a step by parts.
struct StepTime {
  double gemm = 0, attention = 0, memory_bound = 0, recompute = 0;  // seconds of the busiest stage
  double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;                    // exposed communication
  // Idle time of the pipeline, and the update.
  double bubble = 0, optimizer = 0;

  double tokens = 0;      // per step
  double model_flop = 0;  // per step: layout::model_flops
  double peak_flops = 0;  // peak of all GPUs together

  double compute() const { return gemm + attention + memory_bound + recompute; }
  double exposed() const { return tp + cp + ep + pp + dp; }
  // Return the seconds of a step, its tokens per second, and its model FLOPs utilization: useful work over the peak.
  double total() const { return compute() + exposed() + bubble + optimizer; }
  double tokens_per_second() const { return tokens / total(); }
  double mfu() const { return model_flop / (total() * peak_flops); }
  // Returns the largest part besides matrix products and attention, with its share of the step: "bubble 14 %".
  std::string limit() const;
};

// Computes and caches the idle time of schedules, in units of one chunk's forward. Used by one thread.
class BubbleBook {
 public:
  // `backward_over_forward` is the ratio of their times; it is rounded to halves.
  double idle_units(const layout::PipelineShape& shape, double backward_over_forward);

 private:
  std::map<std::tuple<int, int, int, int, int, int, bool>, double> known_;
};

// Predicts the time of a step. Pass a book to reuse its results.
StepTime plan_step_time(const RunShape& run, const Cluster& cluster, BubbleBook& book);
StepTime plan_step_time(const RunShape& run, const Cluster& cluster);

// Predicts the time of a step in a pipeline whose stages all have the work of `stage`: what a rank of that stage would
// take if it never waited for a busier one. With one stage it is plan_step_time.
StepTime plan_stage_time(const RunShape& run, const Cluster& cluster, int stage);

// Returns how many layers to give the first pipeline rank (decoder_first_pipeline_num_layers) for the fastest step, if
// that gains 2 % over an equal share: towers are work of the first stage alone. std::nullopt otherwise, without media,
// and if the layers of stages are given.
std::optional<int> first_rank_advice(const RunShape& run, const Cluster& cluster);

// Speed of collectives in a group of `size` ranks, `stride` apart, as NCCL would run them: at the speed of the links
// within a node, or, across nodes, of the combined network links of the members in one node.
struct GroupSpeed {
  double size = 1;
  double bytes_per_second = 1;
  double latency_s = 0;
  double outside = 0;  // share of the members that are on other nodes
  double inter_bytes_per_second = 1, intra_bytes_per_second = 1;

  // `stride` is the distance of neighboring members in ranks: 1 for tp, tp for cp, and so on.
  GroupSpeed(const Cluster& cluster, int size, int stride);
  // The same for the ranks of a group, ascending; node n has ranks [n·gpus_per_node, (n+1)·gpus_per_node).
  GroupSpeed(const Cluster& cluster, const std::vector<int>& ranks);
  // Return the seconds of a collective. `bytes` is the size of the whole tensor: what every rank has in the end (all-
  // gather) or at the beginning (reduce-scatter).
  double all_gather(double bytes) const;
  double reduce_scatter(double bytes) const { return all_gather(bytes); }
  double all_reduce(double bytes) const { return 2 * all_gather(bytes); }
  // Returns the seconds when a rank sends `bytes` to all members together, itself included.
  double all_to_all(double bytes) const;
  // Returns the seconds of one message to another member.
  double message(double bytes) const { return size > 1 ? bytes / bytes_per_second + latency_s : 0; }

 private:
  // `per_node` members share a node.
  void set_links(const Cluster& cluster, int members, int per_node);
};

}  // namespace megalith::plan
