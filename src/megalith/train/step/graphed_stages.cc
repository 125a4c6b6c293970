// A slot is recorded when a micro-batch comes for which none is free: its forward, and at once its backward, from the
// autograd graph that recording forward has left. Nothing runs meanwhile, so the flags of gradients can be set to what
// this backward will find. Then the micro-batch is the first that the slot serves.
//
// Both graphs of a slot share memory: what forward keeps for backward stays there until it has run, and backward reuses
// it as it goes. Backward draws no random numbers of its own, but a recomputed layer draws those of its forward again:
// the states of the random streams stay where the replay of forward has put them.
//
// A replayed pass is one node in the autograd graph that the pipeline's engine sees:
//
//   forward    copy the input in ─ replay ─ copy the output out
//   backward   copy its gradient in ─ replay ─ copy the gradient of the input out
#include "megalith/train/step/graphed_stages.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/train/step/graphed_microbatches.h"

namespace megalith::train {

using pipeline::StageCall;

namespace {

// Returns the gradient of a pass' input, given that of its output.
using Backward = std::function<at::Tensor(const at::Tensor&)>;

struct ReplayedPass : torch::autograd::Function<ReplayedPass> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& /*input*/,
                            const at::Tensor& output, Backward back) {
    ops::save_state(ctx, std::move(back));
    return output.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {ops::saved_state<Backward>(ctx)(grads[0]), {}, {}};
  }
};

bool angles_stretch(const model::ModelConfig& config) {
  return config.rope && config.rope->scaling == ops::RopeScaling::kDynamic;
}

}  // namespace

struct GraphedStages::Slot {
  GraphRecorder recorder;  // with memory of its own
  RecordedBatch batch;
  at::Tensor input;        // a leaf; undefined on the first stage
  at::Tensor output_grad;  // undefined on the last stage, where backward starts
  std::unique_ptr<RecordedGraph> forward, backward;
  StagePass pass;   // results of the latest forward, detached
  at::Tensor root;  // its output with the autograd graph, until backward is recorded
  bool busy = false;

  Backward back() {
    return [this](const at::Tensor& grad) {
      if (output_grad.defined()) output_grad.copy_(grad);
      check(recorder.stale() == backward->before,
            "gradients were not in the state in which the backward pass of a micro-batch was recorded");
      recorder.replay(*backward);
      busy = false;
      const at::Tensor result = input.defined() ? input.grad() : at::Tensor();
      return result.defined() ? result.clone() : result;
    };
  }
};

struct GraphedStages::Chunk {
  model::GptModel* model;
  GraphRecorder state;          // for the flags of this chunk's parameters; records nothing
  at::Tensor anchor;            // stands for the input of the first stage in autograd
  std::optional<BatchKey> key;  // that of the slots; the latest one while there are none
  ops::SequenceLayout layout;   // the layout that came with `key`, in a pass without a graph
  std::vector<bool> added;      // GraphRecorder::stale() when backward adds to gradients; empty until known
  std::vector<std::unique_ptr<Slot>> slots;
};

GraphedStages::GraphedStages(model::VirtualModels& models, int warm_up_steps, AgreeOnGraphs agree, MakeDeviceGraph make)
    : warm_up_steps_(warm_up_steps),
      agree_(std::move(agree)),
      make_(std::move(make)),
      stretches_(angles_stretch(models.config())) {
  for (const auto& chunk : models)
    chunks_.push_back({.model = chunk.get(),
                       .state = GraphRecorder({chunk.get()}, agree_, make_),
                       .anchor = at::zeros({}, at::TensorOptions(chunk->options().device)).requires_grad_(),
                       .key = {},
                       .layout = {},
                       .added = {},
                       .slots = {}});
}

GraphedStages::~GraphedStages() = default;

void GraphedStages::begin_step() {
  ++steps_;
  for (const Chunk& chunk : chunks_)
    for (const auto& slot : chunk.slots) slot->busy = false;
}

void GraphedStages::end_step() {
  for (Chunk& chunk : chunks_) chunk.added = chunk.state.stale();
}

std::optional<StagePass> GraphedStages::forward(const StageCall& call, const data::MicroBatch& batch,
                                                std::vector<double> constants,
                                                optim::DistributedDataParallel& gradients, const Work& work) {
  if (broken_) return std::nullopt;
  Chunk& chunk = chunks_[static_cast<size_t>(call.chunk)];
  BatchKey key = BatchKey::of(batch, std::move(constants), stretches_);
  if (!chunk.key || !(*chunk.key == key)) {
    if (!chunk.slots.empty()) return std::nullopt;
    chunk.key = std::move(key);
    chunk.layout = batch.layout;
    return std::nullopt;
  }
  if (call.microbatch == 0 || steps_ <= warm_up_steps_ || chunk.added.empty() || !chunk.state.settled())
    return std::nullopt;
  Slot* const slot = free_slot(chunk, call, batch, gradients, work);
  if (slot == nullptr) return std::nullopt;
  slot->busy = true;
  slot->batch.load(batch);
  if (call.input.defined()) {
    const at::NoGradGuard no_grad;
    slot->input.copy_(call.input);
  }
  const std::vector<bool> stale = slot->recorder.stale();
  slot->recorder.replay(*slot->forward);
  slot->recorder.set_stale(stale);  // forward leaves the flags alone, whatever they were when it was recorded
  StagePass pass;
  if (slot->pass.loss) pass.loss = copied(*slot->pass.loss);
  pass.output = ReplayedPass::apply(call.input.defined() ? call.input : chunk.anchor, slot->pass.output, slot->back());
  return pass;
}

GraphedStages::Slot* GraphedStages::free_slot(Chunk& chunk, const StageCall& call, const data::MicroBatch& batch,
                                              optim::DistributedDataParallel& gradients, const Work& work) {
  for (const auto& slot : chunk.slots)
    if (!slot->busy) return slot.get();
  auto slot = std::make_unique<Slot>(Slot{.recorder = GraphRecorder({chunk.model}, agree_, make_),
                                          .batch = RecordedBatch(batch, chunk.layout, chunk.model->options().device),
                                          .input = {},
                                          .output_grad = {},
                                          .forward = {},
                                          .backward = {},
                                          .pass = {},
                                          .root = {}});
  if (call.input.defined()) slot->input = at::empty_like(call.input, at::MemoryFormat::Contiguous).requires_grad_();
  if (!record(*slot, chunk, call, gradients, work)) {
    broken_ = true;
    return nullptr;
  }
  recorded_ += 2;
  log_text(LogLevel::kDebug,
           fmt::format("recorded a graph of a micro-batch of {} tokens in step {} of this run: forward"
                       " and backward of chunk {}, slot {}",
                       batch.tokens(), steps_, call.chunk, chunk.slots.size()));
  chunk.slots.push_back(std::move(slot));
  return chunk.slots.back().get();
}

// Gradients only accumulate in a recorded backward: reductions are outside of graphs.
bool GraphedStages::record(Slot& slot, Chunk& chunk, const StageCall& call, optim::DistributedDataParallel& gradients,
                           const Work& work) {
  const optim::DistributedDataParallel::NoSync accumulate(gradients);
  slot.batch.hold_angles({chunk.model});
  slot.forward = slot.recorder.record([to = &slot, work] {
    to->pass = work(to->batch.batch(), to->input);
    to->root = std::exchange(to->pass.output, to->pass.output.detach());
  });
  if (!slot.forward) return false;
  if (!call.last_stage) slot.output_grad = at::zeros_like(slot.pass.output);
  const std::vector<bool> now = slot.recorder.stale();
  slot.recorder.set_stale(chunk.added);
  slot.backward = slot.recorder.record([to = &slot] {
    if (to->input.defined()) to->input.mutable_grad().reset();
    const at::Tensor root = std::exchange(to->root, {});
    root.backward(to->output_grad);
  });
  slot.recorder.set_stale(now);
  check(!slot.backward || !parallel::draws_anything(slot.backward->drawn), "a backward pass draws random numbers");
  return slot.backward != nullptr;
}

}  // namespace megalith::train
