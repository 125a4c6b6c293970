// The engine is an interpreter of a rank's schedule. Step walks the actions; Mail owns the messages between them.
//
//   boundary 0   action 0   boundary 1   action 1   …   last boundary
//
// At each boundary Mail posts one batch of sends and receives per direction. layout::pipeline_transfers assigns the
// messages to boundaries for all ranks together and proves that this cannot deadlock.
// Without overlap a rank waits for the batch right there; with overlap it waits in take(), when an action needs the
// tensor. At most one batch per direction stays in flight during an action, which bounds the memory of pending sends.
//
// Once its hidden states are sent, a stage needs only their autograd graph. So their storage is freed and backward is
// started from the graph's edge instead of the tensor; this keeps one [rows, h] tensor less per micro-batch in flight.
//
// A pair of actions (PipelineAction::with_next) is one action with two inputs and two outputs: its forward and backward
// take turns, and its messages are posted when both have finished.
//
// The last stage is the first to finish. Weight gradients of the head that it has deferred (StageWork::head) are
// computed after its last message has left, while the stages before it still work on it.
#include "megalith/pipeline/forward_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/layout/pipeline_transfers.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/turns.h"

namespace megalith::pipeline {

using layout::PipelineAction;
using layout::PipelineTransfer;
using Kind = PipelineAction::Kind;

namespace {

// Identifies a message on this rank: hidden states (or their gradients) of a micro-batch, into or out of a chunk.
struct MessageKey {
  bool forward;
  int microbatch, chunk;
  auto operator<=>(const MessageKey&) const = default;
};

// Sends and receives the messages of a step: one batch per direction at each boundary between actions. The directions
// have connections of their own, so that a forward input never waits for a gradient.
class Mail {
 public:
  Mail(const parallel::ParallelContext& context, const EngineSettings& settings, const StepPlan& plan)
      : forward_{context.pipeline_messages(true), {}},
        backward_{context.pipeline_messages(false), {}},
        settings_(settings),
        rows_(plan.rows),
        options_(at::TensorOptions(settings.transport.value_or(settings.dtype)).device(context.device())),
        exchanges_(std::move(layout::pipeline_transfers(plan.shape)[static_cast<size_t>(context.place().pp_rank)])) {
    open_connections();
  }

  // Queues a tensor for the next exchange. With `free`, its storage is released once it is sent (or at once, when the
  // conversion to the transport type made a copy).
  void put(const MessageKey& key, const at::Tensor& tensor, bool free) {
    const at::Tensor data = tensor.detach().to(options_.dtype()).contiguous();
    const bool copied = !data.is_alias_of(tensor);
    if (free && copied) release(tensor);
    leaving_[key] = {data, free && !copied ? tensor : at::Tensor()};
  }

  // Posts the messages of this boundary. Without overlap, waits for the direction that the next action uses, but not
  // for the other one. `next` is nullptr after the last action.
  void exchange(size_t boundary, const PipelineAction* next) {
    std::vector<PipelineTransfer> forward, backward;
    for (const PipelineTransfer& t : exchanges_[boundary]) (t.forward ? forward : backward).push_back(t);
    post(forward_, forward);
    post(backward_, backward);
    const bool pair = next && next->with_next;
    finish_older(forward_, !settings_.overlap && next && next->kind == Kind::kForward);
    finish_older(backward_, !settings_.overlap && next && (pair || next->kind == Kind::kBackward));
  }

  // Returns a received tensor, waiting for it if necessary.
  at::Tensor take(const MessageKey& key) {
    auto node = arrivals_.extract(key);
    check(!node.empty(), "a pipeline action needs a message that has not been asked for");
    node.mapped().batch->finish();
    return node.mapped().tensor;
  }

  void finish() {
    for (Direction* direction : {&forward_, &backward_}) {
      for (const auto& batch : direction->in_flight) batch->finish();
      direction->in_flight.clear();
    }
  }

  // Frees the storage of a tensor but keeps the tensor and its autograd graph.
  static void release(const at::Tensor& tensor) { tensor.set_data(at::empty({0}, tensor.options())); }

 private:
  // Messages posted together; tensors to release once they are sent.
  struct Batch {
    comm::Work work;
    std::vector<at::Tensor> to_free;
    void finish() {
      work.wait();
      for (const at::Tensor& tensor : to_free) release(tensor);
      to_free.clear();
    }
  };
  // A queued send: the data, and the tensor whose storage is released afterwards (undefined if none is).
  struct Leaving {
    at::Tensor data;
    at::Tensor to_free;
  };
  // A receive in flight or finished; `batch` tells which.
  struct Arrival {
    at::Tensor tensor;
    std::shared_ptr<Batch> batch;
  };
  // Forward or backward messages, the oldest batch first.
  struct Direction {
    comm::Group group;
    std::deque<std::shared_ptr<Batch>> in_flight;
  };

  // Opens every connection of the step before its first message; layout/pipeline_transfers.h says why. The ranks of a
  // pipeline have the same plan, so both sides open a connection in the same step.
  void open_connections() const {
    for (const bool forward : {true, false}) {
      const layout::PipelineConnections peers = layout::pipeline_connections(exchanges_, forward);
      (forward ? forward_ : backward_).group.open_transfers(peers.send_to, peers.receive_from);
    }
  }

  // Waits for all batches but the newest one (or for all). That bounds the memory that pending batches hold.
  static void finish_older(Direction& direction, bool all) {
    while (direction.in_flight.size() > (all ? 0U : 1U)) {
      direction.in_flight.front()->finish();
      direction.in_flight.pop_front();
    }
  }

  // Starts one batch: sends what put() has queued and receives into new tensors, which take() hands out later.
  void post(Direction& direction, const std::vector<PipelineTransfer>& messages) {
    if (messages.empty()) return;
    std::vector<comm::Transfer> transfers;
    auto batch = std::make_shared<Batch>();
    for (const PipelineTransfer& t : messages) {
      const MessageKey key{t.forward, t.microbatch, t.chunk};
      if (t.send) {
        Leaving leaving = std::move(leaving_.at(key));
        leaving_.erase(key);
        transfers.push_back({comm::OpKind::kSend, leaving.data, t.peer});
        if (leaving.to_free.defined()) batch->to_free.push_back(leaving.to_free);
      } else {
        const at::Tensor buffer = at::empty({rows_[static_cast<size_t>(t.microbatch)], settings_.hidden}, options_);
        transfers.push_back({comm::OpKind::kRecv, buffer, t.peer});
        arrivals_[key] = {buffer, batch};
      }
    }
    batch->work = direction.group.batch_async(transfers, "pipeline transfer");
    direction.in_flight.push_back(batch);
  }

  Direction forward_, backward_;
  const EngineSettings& settings_;
  const std::vector<int64_t>& rows_;
  const at::TensorOptions options_;
  const layout::PipelineExchanges exchanges_;
  std::map<MessageKey, Leaving> leaving_;
  std::map<MessageKey, Arrival> arrivals_;
};

// One step on one rank.
class Step {
 public:
  Step(const parallel::ParallelContext& context, const EngineSettings& settings, const StepPlan& plan,
       const StageWork& work, nn::Turns& turns)
      : settings_(settings),
        shape_(plan.shape),
        work_(work),
        turns_(turns),
        rank_(context.place().pp_rank),
        schedule_(layout::pipeline_schedule(plan.shape, rank_)),
        mail_(context, settings, plan) {}

  void run() {
    const nn::Turns::Scope turns(shape_.paired && !shape_.forward_only ? &turns_ : nullptr);
    size_t boundary = 0;
    for (auto action = schedule_.actions.begin(); action != schedule_.actions.end(); ++action) {
      if (!action->is_compute()) {
        synchronise(*action);
        continue;
      }
      mail_.exchange(boundary++, &*action);
      if (action->with_next) {
        const PipelineAction& first = *action++;
        ++boundary;  // no messages inside a pair
        compute_pair(first, *action);
      } else {
        compute(*action);
      }
    }
    mail_.exchange(boundary, nullptr);
    flush_head();
    mail_.finish();
  }

 private:
  struct InFlight {
    at::Tensor input, output;
  };

  bool first_stage(int chunk) const { return rank_ == 0 && chunk == 0; }
  bool last_stage(int chunk) const { return rank_ == shape_.pp - 1 && chunk == shape_.chunks - 1; }

  void synchronise(const PipelineAction& action) {
    const bool on = action.kind == Kind::kSyncOn;
    if (on || action.kind == Kind::kSyncOff) {
      for (int chunk = 0; work_.set_sync && chunk < shape_.chunks; ++chunk) work_.set_sync(chunk, on);
      sync_ = on;
    } else if (action.kind == Kind::kReduceGrads && work_.start_grad_reduce) {
      if (last_stage(action.chunk)) flush_head();
      work_.start_grad_reduce(action.chunk);
    }
    // kGatherParams needs nothing here: every stage starts to gather right after its update.
  }

  void compute(const PipelineAction& action) {
    // The input is fetched before `watch` begins: waiting does not count as computing.
    const at::Tensor arrived = arrival(action);
    if (work_.watch) work_.watch(action, true);
    std::optional<nn::WeightGradQueue::Recording> head;
    if (defers_head(action)) head.emplace(*work_.head.queue);
    if (action.kind == Kind::kForward)
      forward(action, arrived);
    else if (action.kind == Kind::kBackward)
      backward(action, arrived);
    else
      work_.weight_gradients[static_cast<size_t>(action.chunk)]->run_oldest();
    if (work_.watch) work_.watch(action, false);
  }

  // Their forward and backward belong to different micro-batches, so neither waits for the other.
  void compute_pair(const PipelineAction& ahead, const PipelineAction& back) {
    const at::Tensor input = arrival(ahead), grad = arrival(back);
    if (work_.watch) work_.watch(ahead, true);
    turns_.run([&] { forward(ahead, input); }, [&] { backward(back, grad); });
    if (work_.watch) work_.watch(ahead, false);
  }

  // Whether an action may leave weight gradients of the head for later: forward if it already computes them, otherwise
  // backward. Notes whether backward may reduce gradients.
  bool defers_head(const PipelineAction& action) {
    if (work_.head.queue == nullptr || !last_stage(action.chunk)) return false;
    if (action.kind == Kind::kBackward) head_sync_ = sync_;
    return action.microbatch < work_.head.microbatches;
  }

  // Computes the head's deferred weight gradients. Of the reports that wait with them, only those of the last backward
  // pass count, and only if it was allowed to reduce gradients.
  void flush_head() {
    nn::WeightGradQueue* queue = work_.head.queue;
    if (queue == nullptr || queue->size() == 0) return;
    const int chunk = shape_.chunks - 1;
    const PipelineAction action{Kind::kWeightGradient, shape_.microbatches - 1, chunk};
    if (work_.watch) work_.watch(action, true);
    while (queue->size() > 0) {
      if (work_.set_sync) work_.set_sync(chunk, queue->size() == 1 && head_sync_);
      queue->run_oldest();
    }
    if (work_.set_sync) work_.set_sync(chunk, sync_);
    if (work_.watch) work_.watch(action, false);
  }

  // Returns the message that an action needs; undefined for weight gradients and at the ends of the pipeline.
  at::Tensor arrival(const PipelineAction& action) {
    const bool forward = action.kind == Kind::kForward;
    if (action.kind == Kind::kWeightGradient) return {};
    if (forward ? first_stage(action.chunk) : last_stage(action.chunk)) return {};
    return mail_.take({forward, action.microbatch, action.chunk});
  }

  void forward(const PipelineAction& action, const at::Tensor& arrived) {
    StageCall call{.microbatch = action.microbatch,
                   .chunk = action.chunk,
                   .input = {},
                   .first_stage = first_stage(action.chunk),
                   .last_stage = last_stage(action.chunk)};
    if (arrived.defined()) call.input = arrived.to(settings_.dtype).requires_grad_(!shape_.forward_only);
    const at::Tensor output = work_.forward(call);
    if (!call.last_stage) {
      // Only storage that belongs to the output alone may be freed: a stage without layers returns its input, and a
      // view shares its storage with other tensors.
      const bool own = !output.is_same(call.input) && !output.is_view();
      mail_.put({true, action.microbatch, action.chunk}, output, settings_.free_outputs && own);
    }
    if (!shape_.forward_only) in_flight_[{action.microbatch, action.chunk}] = {call.input, output};
  }

  void backward(const PipelineAction& action, const at::Tensor& arrived) {
    auto node = in_flight_.extract({action.microbatch, action.chunk});
    check(!node.empty(), "backward of a micro-batch whose forward has not run");
    InFlight& state = node.mapped();
    if (shape_.kind == layout::ScheduleKind::kZeroBubble) {
      const nn::WeightGradQueue::Recording recording(*work_.weight_gradients[static_cast<size_t>(action.chunk)]);
      go_back(state, arrived);
    } else {
      go_back(state, arrived);
    }
    if (first_stage(action.chunk)) return;
    at::Tensor grad = state.input.grad();
    if (!grad.defined()) grad = at::zeros_like(state.input);  // the chunk does not depend on its input
    mail_.put({false, action.microbatch, action.chunk}, grad, false);
  }

  // Runs autograd from the output of a chunk. `arrived` is the gradient of that output; undefined on the last stage,
  // where the output is the loss.
  static void go_back(InFlight& state, const at::Tensor& arrived) {
    if (state.output.is_same(state.input)) {  // a stage without layers
      state.input.mutable_grad() = arrived.to(state.input.scalar_type());
      return;
    }
    check(state.output.requires_grad(), "the output of a pipeline stage depends on nothing that is trained");
    const at::Tensor grad = arrived.defined() ? arrived.to(state.output.scalar_type()) : at::ones_like(state.output);
    // Start from the edge, not from the tensor: release() may have taken its storage and with it its shape.
    const auto edge = torch::autograd::impl::gradient_edge(state.output);
    state.output.reset();
    torch::autograd::Engine::get_default_engine().execute({edge}, {grad}, /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }

  const EngineSettings& settings_;
  const layout::PipelineShape& shape_;
  const StageWork& work_;
  nn::Turns& turns_;
  const int rank_;
  const layout::RankSchedule schedule_;
  Mail mail_;
  bool sync_ = true;                                   // the last switch of synchronization; DDP starts with it on
  bool head_sync_ = true;                              // its state in the last backward pass through the head
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by micro-batch and chunk
};

}  // namespace

ForwardBackward::ForwardBackward(const parallel::ParallelContext& context, const EngineSettings& settings)
    : context_(context), settings_(settings), turns_(std::make_shared<nn::Turns>(context.device())) {}

void ForwardBackward::run(const StepPlan& plan, const StageWork& work) const {
  const layout::PipelineShape& shape = plan.shape;
  check(shape.pp == context_.pp().size(), "the plan has {} pipeline stages, but the pipeline group has {} ranks",
        shape.pp, context_.pp().size());
  check(shape.pp == 1 || plan.rows.size() == static_cast<size_t>(shape.microbatches),
        "the plan has {} micro-batches, but row counts for {}", shape.microbatches, plan.rows.size());
  check(shape.pp == 1 || settings_.hidden > 0, "EngineSettings::hidden, the width of the hidden states, is not set");
  const bool splits = shape.kind == layout::ScheduleKind::kZeroBubble && !shape.forward_only;
  check(!splits || work.head.queue == nullptr, "the zero-bubble schedule defers the head's weight gradients itself");
  check(!shape.paired || work.head.queue == nullptr,
        "the weight gradients of the head cannot be deferred while forwards run together with backwards");
  check(!splits || work.weight_gradients.size() == static_cast<size_t>(shape.chunks),
        "the zero-bubble schedule needs one weight-gradient queue per chunk, {} in all", shape.chunks);
  const at::AutoGradMode with_gradients(!shape.forward_only);
  try {
    Step(context_, settings_, plan, work, *turns_).run();
  } catch (...) {
    for (nn::WeightGradQueue* queue : work.weight_gradients) queue->clear();
    if (work.head.queue != nullptr) work.head.queue->clear();
    throw;
  }
}

}  // namespace megalith::pipeline
