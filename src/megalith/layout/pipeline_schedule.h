// Pipeline schedules as data: what each pipeline rank computes, in which order. Pure functions; the engine (module
// `pipeline`) runs such lists, and `megalith preview pipeline` and the planner look at them.
//
// Chunk c of rank p is stage c·pp + p: data passes the ranks of chunk 0, then those of chunk 1, and so on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::layout {

enum class ScheduleKind {
  kNone,         // one stage: micro-batch after micro-batch
  kOneFOneB,     // one forward, one backward in turn: at most pp - rank micro-batches in flight
  kInterleaved,  // several chunks a rank: a shorter bubble for more messages
  kZeroBubble,   // 1F1B with backward in two parts (ZB-H1): weight gradients fill what was bubble
};
std::string_view name(ScheduleKind kind);

struct PipelineAction {
  enum class Kind {
    kForward,
    kBackward,        // kZeroBubble: the gradient of the input alone
    kWeightGradient,  // kZeroBubble: the rest of it
    kSyncOff,         // gradients only accumulate from here on
    kSyncOn,          // the next backward of the chunk is its last: its buckets may be reduced
    kGatherParams,    // start to collect the parameters of the chunk
    kReduceGrads,     // start the reduction of the chunk's gradients
  };
  Kind kind = Kind::kForward;
  int microbatch = 0;
  int chunk = 0;
  bool operator==(const PipelineAction&) const = default;
  bool is_compute() const { return kind <= Kind::kWeightGradient; }
  // "F3.1", "B3.1", "W3.1" (micro-batch.chunk), "-sync", "+sync", "P1", "G1".
  std::string text() const;
};

// When gradients are reduced and parameters collected.
enum class PipelineSync {
  kLeaveOut,  // no such actions: forward only, or nothing to synchronise
  kDefault,   // reduction is on in the last backward of each chunk
  kAligned,   // all stages start the reduction, and the collection, of a chunk at the same point of the schedule
};

struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int pp = 1;
  int chunks = 1;  // on each rank; more than 1: kInterleaved only
  int microbatches = 1;
  std::optional<int> group_size;  // kInterleaved: micro-batches that a chunk runs in a row; absent: pp of them
  bool forward_only = false;
  PipelineSync sync = PipelineSync::kLeaveOut;

  // group_size, or what its absence means.
  int group() const { return group_size.value_or(pp); }
  // The kind that a run of this size uses when nothing is asked for.
  static ScheduleKind kind_for(int pp, std::optional<int> vpp);
};

// Every reason why the shape has no schedule, with the nearest one that has.
std::vector<std::string> problems(const PipelineShape& shape);

struct RankSchedule {
  int warmup = 0;           // forwards before the first pair of a forward and a backward
  bool all_warmup = false;  // there is no such pair
  std::vector<PipelineAction> actions;

  // Most forwards without their backward (kZeroBubble: without their weight gradient) at a time: what activations cost.
  int peak_in_flight() const;
  std::vector<int> peak_per_chunk(int chunks) const;
};

// Throws ConfigError with all problems.
RankSchedule pipeline_schedule(const PipelineShape& shape, int rank);

// Interleaved: the order of forward work on every rank, as (micro-batch, chunk); backward takes the same order with
// chunks reversed.
std::vector<std::pair<int, int>> interleaved_order(const PipelineShape& shape);

}  // namespace megalith::layout
