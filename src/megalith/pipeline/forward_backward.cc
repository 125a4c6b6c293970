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

namespace megalith::pipeline {

using layout::PipelineAction;
using layout::PipelineTransfer;
using Kind = PipelineAction::Kind;

namespace {

// A message on this rank: hidden states (or their gradients) of a micro-batch, into or out of a chunk.
struct MessageKey {
  bool forward;
  int microbatch, chunk;
  auto operator<=>(const MessageKey&) const = default;
};

// What a rank sends and receives in a step: one batch for each boundary between its actions and each direction. The
// directions have connections of their own, so that a forward input never waits for a gradient.
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

  // Hands over a tensor for the next exchange. `free`: its storage may go once it is sent.
  void put(const MessageKey& key, const at::Tensor& tensor, bool free) {
    const at::Tensor data = tensor.detach().to(options_.dtype()).contiguous();
    const bool copied = !data.is_alias_of(tensor);
    if (free && copied) release(tensor);
    leaving_[key] = {data, free && !copied ? tensor : at::Tensor()};
  }

  // Posts what stands at this boundary. Without overlap the direction of the action that follows (empty: none follows)
  // is waited for; the other one does not hold it up.
  void exchange(size_t boundary, std::optional<Kind> next) {
    std::vector<PipelineTransfer> forward, backward;
    for (const PipelineTransfer& t : exchanges_[boundary]) (t.forward ? forward : backward).push_back(t);
    post(forward_, forward);
    post(backward_, backward);
    finish_older(forward_, !settings_.overlap && next == Kind::kForward);
    finish_older(backward_, !settings_.overlap && next == Kind::kBackward);
  }

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

  // The storage goes, the tensor with its graph stays.
  static void release(const at::Tensor& tensor) { tensor.set_data(at::empty({0}, tensor.options())); }

 private:
  struct Batch {
    comm::Work work;
    std::vector<at::Tensor> to_free;
    void finish() {
      work.wait();
      for (const at::Tensor& tensor : to_free) release(tensor);
      to_free.clear();
    }
  };
  struct Leaving {
    at::Tensor data;
    at::Tensor to_free;
  };
  struct Arrival {
    at::Tensor tensor;
    std::shared_ptr<Batch> batch;
  };
  struct Direction {
    comm::Group group;
    std::deque<std::shared_ptr<Batch>> in_flight;
  };

  // Before the first message of the step: see layout/pipeline_transfers.h. The ranks of a pipeline have the same plan,
  // so each connection is opened by both of its sides in the same step.
  void open_connections() const {
    for (const bool forward : {true, false}) {
      const layout::PipelineConnections peers = layout::pipeline_connections(exchanges_, forward);
      (forward ? forward_ : backward_).group.open_transfers(peers.send_to, peers.receive_from);
    }
  }

  // One batch may stay in flight while the rank computes; older ones end, so that what they hold is bounded.
  static void finish_older(Direction& direction, bool all) {
    while (direction.in_flight.size() > (all ? 0U : 1U)) {
      direction.in_flight.front()->finish();
      direction.in_flight.pop_front();
    }
  }

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
        const at::Tensor place = at::empty({rows_[static_cast<size_t>(t.microbatch)], settings_.hidden}, options_);
        transfers.push_back({comm::OpKind::kRecv, place, t.peer});
        arrivals_[key] = {place, batch};
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
       const StageWork& work)
      : settings_(settings),
        shape_(plan.shape),
        work_(work),
        rank_(context.place().pp_rank),
        schedule_(layout::pipeline_schedule(plan.shape, rank_)),
        mail_(context, settings, plan) {}

  void run() {
    size_t boundary = 0;
    for (const PipelineAction& action : schedule_.actions) {
      if (!action.is_compute()) {
        synchronise(action);
        continue;
      }
      mail_.exchange(boundary++, action.kind);
      compute(action);
    }
    mail_.exchange(boundary, std::nullopt);
    mail_.finish();
  }

 private:
  struct InFlight {
    at::Tensor input, output;
  };

  bool first_stage(int chunk) const { return rank_ == 0 && chunk == 0; }
  bool last_stage(int chunk) const { return rank_ == shape_.pp - 1 && chunk == shape_.chunks - 1; }

  void synchronise(const PipelineAction& action) const {
    const bool on = action.kind == Kind::kSyncOn;
    if (on || action.kind == Kind::kSyncOff) {
      for (int chunk = 0; work_.set_sync && chunk < shape_.chunks; ++chunk) work_.set_sync(chunk, on);
    } else if (action.kind == Kind::kReduceGrads && work_.start_grad_reduce) {
      work_.start_grad_reduce(action.chunk);
    }
    // kGatherParams: every stage has started to gather right behind its update.
  }

  void compute(const PipelineAction& action) {
    // Waiting is not computing: what the action needs is taken first.
    const at::Tensor arrived = arrival(action);
    if (work_.watch) work_.watch(action, true);
    if (action.kind == Kind::kForward)
      forward(action, arrived);
    else if (action.kind == Kind::kBackward)
      backward(action, arrived);
    else
      work_.weight_gradients[static_cast<size_t>(action.chunk)]->run_oldest();
    if (work_.watch) work_.watch(action, false);
  }

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
      // A stage without layers passes its input on; a view shares its storage with others.
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
    if (!grad.defined()) grad = at::zeros_like(state.input);  // nothing behind it needs a gradient
    mail_.put({false, action.microbatch, action.chunk}, grad, false);
  }

  // `arrived`: the gradient of the output; undefined on the last stage, whose output is the loss.
  static void go_back(InFlight& state, const at::Tensor& arrived) {
    if (state.output.is_same(state.input)) {  // a stage without layers
      state.input.mutable_grad() = arrived.to(state.input.scalar_type());
      return;
    }
    check(state.output.requires_grad(), "the output of a pipeline stage depends on nothing that is trained");
    const at::Tensor grad = arrived.defined() ? arrived.to(state.output.scalar_type()) : at::ones_like(state.output);
    // By the edge, not by the tensor, whose storage and with it its shape are gone.
    const auto edge = torch::autograd::impl::gradient_edge(state.output);
    state.output.reset();
    torch::autograd::Engine::get_default_engine().execute({edge}, {grad}, /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }

  const EngineSettings& settings_;
  const layout::PipelineShape& shape_;
  const StageWork& work_;
  const int rank_;
  const layout::RankSchedule schedule_;
  Mail mail_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by micro-batch and chunk
};

}  // namespace

ForwardBackward::ForwardBackward(const parallel::ParallelContext& context, const EngineSettings& settings)
    : context_(context), settings_(settings) {}

void ForwardBackward::run(const StepPlan& plan, const StageWork& work) const {
  const layout::PipelineShape& shape = plan.shape;
  check(shape.pp == context_.pp().size(), "a plan of {} pipeline stages on {} ranks", shape.pp, context_.pp().size());
  check(shape.pp == 1 || plan.rows.size() == static_cast<size_t>(shape.microbatches),
        "a plan of {} micro-batches gives the rows of {}", shape.microbatches, plan.rows.size());
  check(shape.pp == 1 || settings_.hidden > 0, "the width of the hidden states is not given");
  const bool splits = shape.kind == layout::ScheduleKind::kZeroBubble && !shape.forward_only;
  check(!splits || work.weight_gradients.size() == static_cast<size_t>(shape.chunks),
        "the zero-bubble schedule needs a queue for weight gradients for each of {} chunks", shape.chunks);
  const at::AutoGradMode with_gradients(!shape.forward_only);
  try {
    Step(context_, settings_, plan, work).run();
  } catch (...) {
    for (nn::WeightGradQueue* queue : work.weight_gradients) queue->clear();
    throw;
  }
}

}  // namespace megalith::pipeline
