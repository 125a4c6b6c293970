// Writes the list of actions of one rank for each kind of schedule. For pp = 4 and 4 micro-batches (time to the right;
// F and B of the same micro-batch have the same number, '.' is idle):
//
//   1F1B      rank 0  F0 F1 F2 F3 .  .  .  B0 .  B1 .  B2 .  B3
//             rank 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .  .
//
// Rank r runs pp - r - 1 forwards to fill the pipeline (warm-up), then pairs of a forward and a backward (steady
// state), then the remaining backwards (cool-down). Zero-bubble splits backward in two and moves weight gradients into
// the idle places; interleaved runs several chunks per rank, which divides the idle time by their number.
//
// Besides the computation, the lists say where gradients start to be reduced and parameters gathered. By default a
// chunk's gradients are reduced during its last backward. Aligned schedules delay that by the rank, so that all stages
// start the collective at the same time.
#include "megalith/layout/pipeline_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "megalith/base/error.h"

namespace megalith::layout {

namespace {

using Kind = PipelineAction::Kind;

// Appends actions; switches of synchronization only where the state changes.
class Writer {
 public:
  explicit Writer(const PipelineShape& shape) : sync_(shape.sync) {
    if (sync_ != PipelineSync::kLeaveOut) actions_.push_back({Kind::kSyncOff});
  }
  void work(Kind kind, int microbatch, int chunk) { actions_.push_back({kind, microbatch, chunk}); }
  // A forward that runs together with the next action, which must be a backward.
  void first_of_pair(int microbatch, int chunk) { actions_.push_back({Kind::kForward, microbatch, chunk, true}); }
  void collective(Kind kind, int chunk) { actions_.push_back({kind, 0, chunk}); }
  void set_sync(bool on) {
    if (sync_ == PipelineSync::kLeaveOut || on == on_) return;
    actions_.push_back({on ? Kind::kSyncOn : Kind::kSyncOff});
    on_ = on;
  }
  bool aligned() const { return sync_ == PipelineSync::kAligned; }
  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  const PipelineSync sync_;
  bool on_ = false;
  std::vector<PipelineAction> actions_;
};

// Without backward, everything is warm-up.
RankSchedule forwards_only(const PipelineShape& shape) {
  Writer out(shape);
  for (const auto& [m, chunk] : interleaved_order(shape)) out.work(Kind::kForward, m, chunk);
  return {shape.microbatches * shape.chunks, true, out.take()};
}

// One stage: forward and backward of each micro-batch; gradients are reduced in the last one.
RankSchedule one_stage(const PipelineShape& shape) {
  Writer out(shape);
  for (int m = 0; m < shape.microbatches; ++m) {
    if (m == shape.microbatches - 1) out.set_sync(true);
    out.work(Kind::kForward, m, 0);
    out.work(Kind::kBackward, m, 0);
  }
  return {0, false, out.take()};
}

// The same in pairs: F0, F1 with B0, F2 with B1, …, and the last backward alone, which reduces the gradients.
RankSchedule one_paired_stage(const PipelineShape& shape) {
  Writer out(shape);
  const int last = shape.microbatches - 1;
  out.work(Kind::kForward, 0, 0);
  for (int m = 0; m < last; ++m) {
    out.first_of_pair(m + 1, 0);
    out.work(Kind::kBackward, m, 0);
  }
  out.set_sync(true);
  out.work(Kind::kBackward, last, 0);
  return {1, last == 0, out.take()};
}

// See the picture above. `back` counts the backwards written so far.
RankSchedule one_f_one_b(const PipelineShape& shape, int rank) {
  Writer out(shape);
  const int count = shape.microbatches, warmup = std::min(count, shape.pp - rank - 1);
  for (int m = 0; m < warmup; ++m) out.work(Kind::kForward, m, 0);
  int back = 0;
  const auto backward = [&] {
    // Aligned: only the first stage, whose backward ends last, reduces during it.
    if (back == count - 1 && (!out.aligned() || rank == 0)) out.set_sync(true);
    out.work(Kind::kBackward, back++, 0);
  };
  for (int m = warmup; m < count; ++m) {
    out.work(Kind::kForward, m, 0);
    backward();
  }
  while (back < count) backward();
  if (out.aligned() && rank != 0) {
    out.set_sync(true);
    out.collective(Kind::kReduceGrads, 0);
  }
  return {warmup, warmup == count, out.take()};
}

// ZB-H1 (Qi et al. 2023, Zero Bubble Pipeline Parallelism): the order of 1F1B, but rank r computes weight gradients r
// micro-batches later. So every rank holds at most pp micro-batches, and the last weight gradients fill the end.
RankSchedule zero_bubble(const PipelineShape& shape, int rank) {
  Writer out(shape);
  const int count = shape.microbatches, warmup = std::min(count, shape.pp - rank - 1);
  int forward = 0, back = 0, weights = 0;
  const auto weight_gradient = [&] {
    if (weights == count - 1) out.set_sync(true);
    out.work(Kind::kWeightGradient, weights++, 0);
  };
  while (forward < warmup) out.work(Kind::kForward, forward++, 0);
  while (forward < count) {
    out.work(Kind::kForward, forward++, 0);
    out.work(Kind::kBackward, back++, 0);
    if (back - weights > rank) weight_gradient();
  }
  while (back < count) {
    out.work(Kind::kBackward, back++, 0);
    weight_gradient();  // in the gap before the next gradient arrives
  }
  while (weights < count) weight_gradient();
  return {warmup, warmup == count, out.take()};
}

// The interleaved schedule counts virtual micro-batches: entry k of the order is the k-th forward of every rank, and
// the k-th backward with the chunk reversed. Warm-up is long enough for the last chunk's first backward to arrive: two
// steps for each later rank, plus a group of micro-batches for every chunk but one. In pairs it is one forward longer:
// the last stage's backward then belongs to the forward before the one that it runs with.
class Interleaved {
 public:
  Interleaved(const PipelineShape& shape, int rank)
      : shape_(shape), rank_(rank), order_(interleaved_order(shape)), out_(shape) {}

  RankSchedule run() {
    const int total = static_cast<int>(order_.size());
    const int filling = 2 * (shape_.pp - rank_ - 1) + (shape_.chunks - 1) * shape_.group();
    const int warmup = std::min(total, filling + (shape_.paired ? 1 : 0));
    // Parameters of the first two chunks are gathered before anything runs; the others follow one chunk ahead.
    if (out_.aligned())
      for (int chunk = 0; chunk < std::min(2, shape_.chunks); ++chunk) out_.collective(Kind::kGatherParams, chunk);
    for (int k = 0; k < warmup; ++k) forward(k);
    for (int k = warmup; k < total; ++k) {
      if (shape_.paired) before_backward(k - warmup);  // nothing comes between the actions of a pair
      forward(k, shape_.paired);
      backward(k - warmup);
    }
    for (int k = total - warmup; k < total; ++k) backward(k);
    finish();
    return {warmup, warmup == total, out_.take()};
  }

 private:
  // Backward runs through the chunks in reverse: the last chunk's output comes first.
  int forward_chunk(int k) const { return order_[static_cast<size_t>(k)].second; }
  int backward_chunk(int k) const { return shape_.chunks - 1 - forward_chunk(k); }
  int microbatch(int k) const { return order_[static_cast<size_t>(k)].first; }

  void forward(int k, bool with_next = false) {
    // Gathers one chunk ahead, counted in the time of the first rank, so that all ranks start at the same time.
    const int at = k + rank_;
    if (out_.aligned() && at < static_cast<int>(order_.size()) && microbatch(at) == 0) {
      const int next = forward_chunk(at) + 1;
      if (next > 1 && next < shape_.chunks) out_.collective(Kind::kGatherParams, next);
    }
    if (with_next)
      out_.first_of_pair(microbatch(k), forward_chunk(k));
    else
      out_.work(Kind::kForward, microbatch(k), forward_chunk(k));
  }

  // Lets the last backward of a chunk reduce its gradients. Calling it twice is the same as once.
  void before_backward(int k) {
    if (!out_.aligned() && is_last(k)) start_sync(backward_chunk(k));
  }

  void backward(int k) {
    before_backward(k);
    out_.work(Kind::kBackward, microbatch(k), backward_chunk(k));
    // The same shift for reductions: rank r reduces r backwards later, when rank 0 finishes its last one.
    const int at = k - rank_;
    if (out_.aligned() && at >= 0 && is_last(at)) {
      start_sync(backward_chunk(at));
      out_.collective(Kind::kReduceGrads, backward_chunk(at));
    }
    out_.set_sync(false);
  }

  // Reductions that the shift moved past the last backward.
  void finish() {
    out_.set_sync(true);
    if (!out_.aligned()) return;
    for (int chunk = 0; chunk < shape_.chunks; ++chunk)
      if (!synchronised_.contains(chunk)) out_.collective(Kind::kReduceGrads, chunk);
  }

  bool is_last(int k) const { return microbatch(k) == shape_.microbatches - 1; }
  void start_sync(int chunk) {
    out_.set_sync(true);
    synchronised_.insert(chunk);
  }

  const PipelineShape& shape_;
  const int rank_;
  const std::vector<std::pair<int, int>> order_;
  std::set<int> synchronised_;
  Writer out_;
};

// Returns the micro-batch count nearest to the given one that the interleaved schedule accepts.
int nearest_count(const PipelineShape& shape) {
  // The rule of interleaved_problems() for a number of micro-batches.
  const auto good = [&](int m) {
    return m >= shape.group() && (m % shape.group() == 0 || m % shape.group() >= shape.pp);
  };
  for (int away = 0;; ++away) {
    if (good(shape.microbatches + away)) return shape.microbatches + away;
    if (shape.microbatches - away > 0 && good(shape.microbatches - away)) return shape.microbatches - away;
  }
}

// A group must be at least as long as the pipeline, or its first micro-batch would not be back for the next chunk; the
// last group may be shorter than the others, but not shorter than the pipeline.
void interleaved_problems(const PipelineShape& shape, std::vector<std::string>& found) {
  const int group = shape.group();
  if (group < shape.pp || group > shape.microbatches)
    found.push_back(
        fmt::format("microbatch_group_size_per_virtual_pipeline_stage is {}{}; it must be at least the {} pipeline "
                    "stages and at most"
                    " the {} micro-batches of a step{}",
                    group, shape.group_size ? "" : " (the default: the number of stages)", shape.pp, shape.microbatches,
                    group > shape.microbatches && shape.microbatches < shape.pp
                        ? fmt::format("; use {} micro-batches, or no virtual stages", shape.pp)
                        : ""));
  else if (shape.microbatches % group != 0 && shape.microbatches % group < shape.pp)
    found.push_back(
        fmt::format("{} micro-batches in groups of {} leave a last group of {}, fewer than the {} pipeline stages; use "
                    "{} micro-batches",
                    shape.microbatches, group, shape.microbatches % group, shape.pp, nearest_count(shape)));
}

}  // namespace

std::string_view name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kNone:
      return "none";
    case ScheduleKind::kOneFOneB:
      return "1f1b";
    case ScheduleKind::kInterleaved:
      return "interleaved";
    case ScheduleKind::kZeroBubble:
      return "zero_bubble";
  }
  return "";
}

// The notation of the golden files: F3.1 is the forward of micro-batch 3 in chunk 1.
std::string PipelineAction::text() const {
  switch (kind) {
    case Kind::kForward:
      return fmt::format("F{}.{}", microbatch, chunk);
    case Kind::kBackward:
      return fmt::format("B{}.{}", microbatch, chunk);
    case Kind::kWeightGradient:
      return fmt::format("W{}.{}", microbatch, chunk);
    case Kind::kSyncOff:
      return "-sync";
    case Kind::kSyncOn:
      return "+sync";
    case Kind::kGatherParams:
      return fmt::format("P{}", chunk);
    case Kind::kReduceGrads:
      return fmt::format("G{}", chunk);
  }
  return "";
}

ScheduleKind PipelineShape::kind_for(int pp, std::optional<int> vpp) {
  if (pp == 1) return ScheduleKind::kNone;
  return vpp ? ScheduleKind::kInterleaved : ScheduleKind::kOneFOneB;
}

std::vector<std::string> problems(const PipelineShape& shape) {
  std::vector<std::string> found;
  if (shape.pp < 1) found.push_back(fmt::format("{} pipeline stages; there must be at least 1", shape.pp));
  if (shape.chunks < 1) found.push_back(fmt::format("{} chunks per rank; there must be at least 1", shape.chunks));
  if (shape.microbatches < 1)
    found.push_back(fmt::format("{} micro-batches in a step; there must be at least 1", shape.microbatches));
  if (!found.empty()) return found;
  if (shape.kind == ScheduleKind::kNone && shape.pp != 1)
    found.push_back(fmt::format("{} pipeline stages need a pipeline schedule", shape.pp));
  if (shape.kind != ScheduleKind::kInterleaved && shape.chunks != 1)
    found.push_back(
        fmt::format("the schedule {} has one chunk per rank, not {}; virtual stages need the interleaved schedule",
                    name(shape.kind), shape.chunks));
  if (shape.paired && shape.kind != ScheduleKind::kNone && shape.kind != ScheduleKind::kInterleaved)
    found.push_back(
        fmt::format("the schedule {} cannot run a forward together with a backward, because one waits for the other"
                    " through the neighboring stages; use virtual stages (the interleaved schedule)",
                    name(shape.kind)));
  if (shape.kind == ScheduleKind::kInterleaved) interleaved_problems(shape, found);
  return found;
}

// With groups of 2 and 2 chunks: (0,0) (1,0) (0,1) (1,1) (2,0) (3,0) (2,1) (3,1), as (micro-batch, chunk).
std::vector<std::pair<int, int>> interleaved_order(const PipelineShape& shape) {
  std::vector<std::pair<int, int>> order;
  const int group = shape.group();
  for (int first = 0; first < shape.microbatches; first += group)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int m = first; m < std::min(shape.microbatches, first + group); ++m) order.emplace_back(m, chunk);
  return order;
}

RankSchedule pipeline_schedule(const PipelineShape& shape, int rank) {
  const auto found = problems(shape);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "; "));
  check(rank >= 0 && rank < shape.pp, "pipeline rank {} of {}", rank, shape.pp);
  if (shape.forward_only) return forwards_only(shape);
  switch (shape.kind) {
    case ScheduleKind::kNone:
      return shape.paired ? one_paired_stage(shape) : one_stage(shape);
    case ScheduleKind::kOneFOneB:
      return one_f_one_b(shape, rank);
    case ScheduleKind::kZeroBubble:
      return zero_bubble(shape, rank);
    case ScheduleKind::kInterleaved:
      break;
  }
  return Interleaved(shape, rank).run();
}

// Counts forwards up and the action that frees their activations down.
std::vector<int> RankSchedule::peak_per_chunk(int chunks) const {
  const bool split = std::ranges::any_of(actions, [](const auto& a) { return a.kind == Kind::kWeightGradient; });
  std::vector<int> now(static_cast<size_t>(chunks), 0), peak = now;
  for (const PipelineAction& a : actions) {
    int& count = now[static_cast<size_t>(a.is_compute() ? a.chunk : 0)];
    if (a.kind == Kind::kForward) ++count;
    if (a.kind == (split ? Kind::kWeightGradient : Kind::kBackward)) --count;
    if (a.is_compute()) peak[static_cast<size_t>(a.chunk)] = std::max(peak[static_cast<size_t>(a.chunk)], count);
  }
  return peak;
}

// All chunks count as one, since their activations share the memory of the rank.
int RankSchedule::peak_in_flight() const {
  std::vector<PipelineAction> one_chunk = actions;
  for (PipelineAction& a : one_chunk) a.chunk = 0;
  return RankSchedule{warmup, all_warmup, std::move(one_chunk)}.peak_per_chunk(1)[0];
}

}  // namespace megalith::layout
