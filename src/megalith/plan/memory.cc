// The peak of a rank is found by replaying its step with numbers instead of tensors: StepWalk follows the actions and
// exchanges of pipeline/forward_backward.cc and runs the allocations of each chunk's footprint. Around that come the
// parts that do not depend on the moment: parameters, gradients, optimizer state (parameter_sizes.h), copies that
// collectives make, and workspaces of libraries. It must change whenever that engine changes what it holds.
#include "megalith/plan/memory.h"

#include <algorithm>
#include <deque>

#include "megalith/base/error.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/optim/matrix_update.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

using layout::PipelineAction;
using Kind = PipelineAction::Kind;
using model::ChunkFootprint;
using nn::Bytes;
using nn::Use;

// Replays a step on one rank: pipeline/forward_backward.cc with bytes in place of tensors.
class StepWalk {
 public:
  StepWalk(const RunShape& run, double message, std::vector<ChunkFootprint> chunks, int pp_rank)
      : chunks_(std::move(chunks)),
        message_(message),
        rank_(pp_rank),
        pp_(run.grid.pp),
        microbatches_(static_cast<int>(run.microbatches)),
        deferred_heads_(run.deferred_heads),
        head_in_forward_(run.options.loss_chunk > 0),
        overlap_(run.overlap_p2p_comm) {}

  // Every compute action is preceded by the exchanges at its boundary, as in the engine. `walked` micro-batches are in
  // the schedule, which may be a shortened one: what the others defer is there from the beginning.
  Bytes run(const layout::RankSchedule& schedule, const layout::PipelineExchanges& exchanges, int walked) {
    if (last(static_cast<int>(chunks_.size()) - 1))
      walk_.take(chunks_.back().deferred_head * std::max(0, deferred(microbatches_) - deferred(walked)));
    size_t boundary = 0;
    for (auto action = schedule.actions.begin(); action != schedule.actions.end(); ++action) {
      if (!action->is_compute()) continue;
      exchange(exchanges[boundary++], *action);
      if (action->with_next) {
        const PipelineAction& ahead = *action++;
        ++boundary;
        compute_pair(ahead, *action);
      } else {
        compute(*action);
      }
    }
    return walk_.peak();
  }

 private:
  // The first chunk of the first rank receives no input, the last chunk of the last rank sends no output.
  bool first(int chunk) const { return rank_ == 0 && chunk == 0; }
  bool last(int chunk) const { return rank_ == pp_ - 1 && chunk + 1 == static_cast<int>(chunks_.size()); }

  // Returns how many of `microbatches` leave the weight gradient of their head for the flush.
  int deferred(int microbatches) const { return std::min(deferred_heads_, microbatches); }

  // Sent messages are freed when their batch has finished. A direction keeps one batch in flight unless the next action
  // waits for it.
  void exchange(const std::vector<layout::PipelineTransfer>& transfers, const PipelineAction& next) {
    for (const bool forward : {true, false}) {
      std::deque<double>& in_flight = forward ? forward_ : backward_;
      double leaving = 0;
      bool any = false;
      for (const layout::PipelineTransfer& transfer : transfers) {
        if (transfer.forward != forward) continue;
        any = true;
        if (transfer.send)
          leaving += message_;
        else
          walk_.take(message_, Use::kCommunication);
      }
      if (any) in_flight.push_back(leaving);
      const bool waits = !overlap_ && (next.with_next || next.kind == (forward ? Kind::kForward : Kind::kBackward));
      for (; in_flight.size() > (waits ? 0U : 1U); in_flight.pop_front())
        walk_.give(in_flight.front(), Use::kCommunication);
    }
  }

  // Messages change hands here: what arrived becomes an activation, what was computed becomes a message.
  void compute(const PipelineAction& action) {
    const ChunkFootprint& chunk = chunks_[static_cast<size_t>(action.chunk)];
    if (action.kind == Kind::kWeightGradient) return walk_.run(chunk.weight_gradient);
    const bool forward = action.kind == Kind::kForward;
    begin(action);
    walk_.run(forward ? chunk.forward : chunk.backward);
    end(action);
  }

  // The pieces of both passes alternate, as in nn/turns.h; backward begins.
  void compute_pair(const PipelineAction& ahead, const PipelineAction& back) {
    const auto& forward = chunks_[static_cast<size_t>(ahead.chunk)].forward_pieces;
    const auto& backward = chunks_[static_cast<size_t>(back.chunk)].backward_pieces;
    begin(ahead);
    for (size_t i = 0; i < std::max(forward.size(), backward.size()); ++i) {
      if (i < backward.size()) walk_.run(backward[i]);
      if (i < forward.size()) walk_.run(forward[i]);
    }
    end(back);
    end(ahead);
  }

  // The received input of a forward is an activation from now on.
  void begin(const PipelineAction& action) {
    if (action.kind == Kind::kForward && !first(action.chunk)) turn(Use::kCommunication, Use::kActivation);
  }

  void end(const PipelineAction& action) {
    const ChunkFootprint& chunk = chunks_[static_cast<size_t>(action.chunk)];
    const bool forward = action.kind == Kind::kForward;
    if (forward == head_in_forward_ && last(action.chunk) && action.microbatch < deferred_heads_)
      walk_.take(chunk.deferred_head);
    if (!forward && !last(action.chunk)) walk_.give(message_, Use::kCommunication);
    if (forward ? !last(action.chunk) : !first(action.chunk)) turn(Use::kActivation, Use::kCommunication);
  }

  // Moves the bytes of a message from one account to another; the sum stays the same.
  void turn(Use from, Use to) {
    walk_.give(message_, from);
    walk_.take(message_, to);
  }

  std::vector<ChunkFootprint> chunks_;
  double message_;  // bytes
  int rank_, pp_, microbatches_, deferred_heads_;
  bool head_in_forward_;  // the chunked loss computes its gradients in forward
  bool overlap_;
  nn::MemoryWalk walk_;
  std::deque<double> forward_, backward_;  // bytes that leave, by batch
};

// Returns the bytes of tied embeddings' gradients, which are summed over the first and the last stage in a copy.
double tied_bytes(const model::ModelFootprint& model, const layout::LayerSplit& split, int pp_rank) {
  double elements = 0;
  for (int chunk = 0; chunk < split.chunks(); ++chunk)
    for (const nn::ParameterSize& p : model.parameters(split.stage(pp_rank, chunk)))
      if (p.own_bucket && p.trained) elements += static_cast<double>(p.numel);
  return 4 * elements;
}

// Returns the bytes that Muon takes for the matrices of a round (optim::MatrixUpdate), when activations are gone: per
// element two messages, the matrix, its norm's quotient and the result in fp32, and X before and after a step in bf16.
double muon_workspace(const RunShape& run, const StateBytes& state) {
  if (!run.muon) return 0;
  const double products = run.muon->fp32_products ? 8 : 4;
  return (20 + products) * std::min(static_cast<double>(optim::MatrixUpdate::kRoundElements), state.matrix_elements);
}

// Returns the bytes of copies that collectives make after backward, when activations are gone: of a bucket reduced over
// the replicas, and of tied embeddings summed over stages. How many depends on the backend.
double reduction_copy(const RunShape& run, const StateBytes& state, double tied) {
  const bool replicas = run.dp() * run.grid.cp > 1 || (run.model->moe && run.grid.edp() > 1);
  const bool sharded = run.gradients.use_distributed_optimizer;
  switch (run.machinery.collectives) {
    case Machinery::Collectives::kNccl:
      return tied;
    case Machinery::Collectives::kGloo:
      return std::max(tied, sharded ? state.largest_bucket : 0);
    case Machinery::Collectives::kThreads:
      return std::max(2 * tied, replicas ? state.largest_bucket : 0);
  }
  return 0;
}

// Returns the bytes for which the logits of a slice of tokens live in the loss of a distillation: those of both models,
// and six fp32 numbers for each (logarithms of both distributions and of their mixture, and products of them). With a
// teacher in files there are the student's alone, and five copies in fp32 (scaled, with a spare column, without the
// kept tokens, relative to their maximum, exponentials).
double slice_bytes(const RunShape& run, const model::ModelFootprint& model) {
  if (run.teacher_slice == 0) return 0;
  const double logits = std::min(run.tokens(), static_cast<double>(run.teacher_slice)) * model.head().out();
  return logits * (run.teacher ? 2 * run.element_bytes() + 6 * 4 : run.element_bytes() + 5 * 4);
}

// cuBLAS keeps 32 MiB for each of the two threads that run products: forward's and backward's.
constexpr double kLibraryWorkspaces = 2.0 * (32 << 20);

// Returns the bytes of token ids and labels of a step, 8 each per token, and of pixels and sounds in fp32. On a GPU
// they stay on the host; with context parallelism a rank holds its slice besides the whole.
double batch_bytes(const RunShape& run) {
  if (run.machinery.cuda) return 0;
  const auto tokens = static_cast<double>(run.sequences() * run.sequence_length * run.microbatches);
  const int64_t patches = run.microbatch_images() * run.image_patches() * run.microbatches;
  const double pixels = patches > 0 ? static_cast<double>(patches * run.model->vision->patch_pixels()) : 0;
  const int64_t frames = run.microbatch_sounds() * run.sound_frames * run.microbatches;
  const double levels = frames > 0 ? static_cast<double>(frames * run.model->audio->mel_bins) : 0;
  return 16 * tokens * (run.grid.cp > 1 ? 1 + 1.0 / run.grid.cp : 1) + 4 * (pixels + levels);
}

}  // namespace

// Long schedules repeat themselves, so a shortened one has the same peak and is walked in a fraction of the time.
const StepActions& ScheduleBook::of(const layout::PipelineShape& shape) {
  layout::PipelineShape cut = shape;
  const int group = shape.group();
  // Four groups of micro-batches reach the steady state; the remainder of the last group keeps its effect.
  const int enough = 4 * group + shape.microbatches % group;
  if (shape.kind == layout::ScheduleKind::kNone)
    cut.microbatches = std::min(shape.paired ? 3 : 2, shape.microbatches);
  else if (shape.microbatches > enough)
    cut.microbatches = enough;
  const auto key = std::make_tuple(static_cast<int>(cut.kind), cut.pp, cut.chunks, cut.microbatches, group, cut.paired);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  cut.sync = layout::PipelineSync::kLeaveOut;
  StepActions actions;
  actions.microbatches = cut.microbatches;
  for (int rank = 0; rank < cut.pp; ++rank) actions.ranks.push_back(layout::pipeline_schedule(cut, rank));
  actions.exchanges = layout::pipeline_transfers(cut);
  return known_.emplace(key, std::move(actions)).first->second;
}

std::vector<RankMemory> plan_memory(const RunShape& run, ScheduleBook& book) {
  const model::ModelFootprint model(*run.model, run.options, rank_sizes(run));
  const layout::LayerSplit split = run.split();
  const layout::PipelineShape& shape = run.pipeline;
  // Zero bubble keeps inputs and gradients of products until their weight gradients are computed.
  const bool defers = shape.kind == layout::ScheduleKind::kZeroBubble;
  const StepActions& actions = book.of(shape);
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < run.grid.pp; ++rank) {
    const auto index = static_cast<size_t>(rank);
    RankMemory memory;
    memory.pp_rank = rank;
    memory.state = state_bytes(run, model, split, rank);
    memory.batches = batch_bytes(run);
    memory.in_flight = actions.ranks[index].peak_in_flight();
    std::vector<ChunkFootprint> chunks;
    for (int chunk = 0; chunk < split.chunks(); ++chunk)
      chunks.push_back(model.chunk(split.stage(rank, chunk), defers));
    memory.at_peak = StepWalk(run, model.rank().residual(), std::move(chunks), rank)
                         .run(actions.ranks[index], actions.exchanges[index], actions.microbatches);
    if (rank + 1 == run.grid.pp) memory.at_peak[static_cast<size_t>(Use::kWorkspace)] += slice_bytes(run, model);
    const double copy = reduction_copy(run, memory.state, tied_bytes(model, split, rank));
    // Reductions after backward need their copies when activations are gone, so the larger of the two counts.
    if (copy > nn::total(memory.at_peak)) memory.at_peak = {0, copy, 0};
    const double iteration = muon_workspace(run, memory.state);
    if (iteration > nn::total(memory.at_peak)) memory.at_peak = {0, 0, iteration};
    if (run.machinery.cuda) memory.at_peak[static_cast<size_t>(Use::kWorkspace)] += kLibraryWorkspaces;
    // Trained parameters exist twice while they are copied into the flat buffers; frozen ones stay outside.
    const StateBytes& state = memory.state;
    memory.making = 2 * state.parameters - state.frozen + state.gradients;
    // Weights that fp8 replaces stay until the optimizer has its main parameters.
    if (state.before_fp8 > 0) memory.making = state.parameters + state.before_fp8 + state.gradients + state.optimizer;
    // A save copies a rank's own part of the state to the host; parameters are divided among their replicas.
    if (run.saves_in_background)
      memory.save_host = memory.state.parameters / (run.dp() * run.grid.cp) + memory.state.optimizer;
    ranks.push_back(memory);
  }
  return ranks;
}

std::vector<RankMemory> plan_memory(const RunShape& run) {
  ScheduleBook book;
  return plan_memory(run, book);
}

const RankMemory& fullest(const std::vector<RankMemory>& ranks) {
  check(!ranks.empty(), "a plan without ranks");
  return *std::ranges::max_element(ranks, {}, [](const RankMemory& rank) { return rank.peak(); });
}

}  // namespace megalith::plan
