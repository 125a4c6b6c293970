// Pipeline schedules as data: the work of each pipeline rank, in order. Pure functions; the engine (module `pipeline`)
// runs these lists, and `megalith preview pipeline` and the planner inspect them.
//
// Chunk c of rank p is stage c·pp + p: data passes through the ranks of chunk 0, then those of chunk 1, and so on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::layout {

// The order of forwards and backwards on the stages.
enum class ScheduleKind {
  kNone,         // a single stage, one micro-batch after the other
  kOneFOneB,     // forward and backward alternate; at most pp - rank micro-batches in flight
  kInterleaved,  // several chunks per rank: a shorter bubble for more messages
  kZeroBubble,   // 1F1B with backward in two parts (ZB-H1): weight gradients fill the bubble
};
std::string_view name(ScheduleKind kind);

// One step of a rank's schedule: a piece of computation, or the start of a collective.
struct PipelineAction {
  // The first three compute; the others concern gradients and parameters.
  enum class Kind {
    kForward,
    kBackward,        // with kZeroBubble, only the gradient of the input
    kWeightGradient,  // with kZeroBubble, the gradient of the weights
    kSyncOff,         // from here on gradients only accumulate
    kSyncOn,          // the next backward of the chunk is its last, so its buckets may be reduced
    kGatherParams,    // start to gather the parameters of the chunk
    kReduceGrads,     // start to reduce the gradients of the chunk
  };
  Kind kind = Kind::kForward;
  int microbatch = 0;
  int chunk = 0;
  bool with_next = false;  // a forward that runs together with the backward after it (PipelineShape::paired)
  bool operator==(const PipelineAction&) const = default;
  // Returns whether both do the same, alone or in a pair.
  bool same_work(const PipelineAction& other) const {
    return kind == other.kind && microbatch == other.microbatch && chunk == other.chunk;
  }
  // Returns whether the action runs layers; the others switch or start collectives.
  bool is_compute() const { return kind <= Kind::kWeightGradient; }
  // Returns "F3.1", "B3.1", "W3.1" (micro-batch.chunk), "-sync", "+sync", "P1", "G1".
  std::string text() const;
};

// When gradients are reduced and parameters gathered.
enum class PipelineSync {
  kLeaveOut,  // no such actions: forward only, or nothing to synchronize
  kDefault,   // gradients are reduced during the last backward of each chunk
  kAligned,   // all stages start to reduce, and to gather, a chunk at the same point of the schedule
};

// Everything that determines a schedule.
struct PipelineShape {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int pp = 1;
  int chunks = 1;  // per rank; more than 1 with kInterleaved only
  int microbatches = 1;
  std::optional<int> group_size;  // kInterleaved: micro-batches that a chunk runs in a row; pp if unset
  bool forward_only = false;
  // Runs a forward together with the backward of another micro-batch wherever both are due, so that each computes while
  // tokens of the other travel to their experts. Needs one more forward in flight. kNone and kInterleaved only: in
  // plain 1F1B the two parts of a pair would depend on each other through the neighboring stages.
  bool paired = false;
  PipelineSync sync = PipelineSync::kLeaveOut;

  // Returns group_size or its default.
  int group() const { return group_size.value_or(pp); }
  // Returns the kind that a run of this size uses by default.
  static ScheduleKind kind_for(int pp, std::optional<int> vpp);
};

// Returns every reason why the shape has no schedule, with the nearest shape that has one.
std::vector<std::string> problems(const PipelineShape& shape);

// The schedule of one rank.
struct RankSchedule {
  int warmup = 0;           // forwards before the first pair of a forward and a backward
  bool all_warmup = false;  // there is no such pair: all forwards come first
  std::vector<PipelineAction> actions;

  // Return the most forwards without their backward (kZeroBubble: their weight gradient) at any time, which determines
  // the memory for activations.
  int peak_in_flight() const;
  std::vector<int> peak_per_chunk(int chunks) const;
};

// Throws ConfigError listing all problems.
RankSchedule pipeline_schedule(const PipelineShape& shape, int rank);

// Returns the order of forward work on every rank of an interleaved schedule, as (micro-batch, chunk); backward takes
// the same order with the chunks reversed.
std::vector<std::pair<int, int>> interleaved_order(const PipelineShape& shape);

}  // namespace megalith::layout
