// Connects the objective with the pipeline's engine: the engine decides the order of forward and backward passes, this
// file what each of them computes and by which factor the loss is scaled.
//
// Scaling. Let L be the summed loss of a micro-batch on this rank, n its count over all context-parallel ranks, m the
// micro-batches of a step and s the loss scale. Gradients are later averaged over dp·cp ranks (or, per token, summed
// and divided by all tokens of the step), so backward starts from
//
//   per token      s · L
//   otherwise      s · L · cp / (n · m)       cp: each context-parallel rank holds only its part of L
#include "megalith/train/step/microbatch_runner.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/log.h"
#include "megalith/comm/store/process_settings.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/parallel/recorded_generator.h"
#include "megalith/train/step/graphed_stages.h"
#include "megalith/train/step/rank_microbatches.h"

namespace megalith::train {

using pipeline::StageCall;

namespace {

// Every stage has the extra tensors, so all ranks of a replica refuse a micro-batch together, before one waits for
// another.
void check_extras(std::span<const data::MicroBatch> batches, const Objective& objective) {
  const std::vector<std::string> keys = objective.extra_keys();
  for (const data::MicroBatch& batch : batches) batch.require_extras(keys);
}

// While it lives, weight gradients are left for later: of all layers if the schedule has a place for them
// (zero_bubble), or of the head in the first `deferred_heads` micro-batches. Otherwise tp_comm_overlap holds them
// within a pass, for collectives to run beside.
class WeightGradQueues {
 public:
  WeightGradQueues(model::VirtualModels& models, layout::ScheduleKind schedule, int deferred_heads)
      : models_(models), deferred_heads_(deferred_heads) {
    const bool defers = schedule == layout::ScheduleKind::kZeroBubble, covers = models[0].options().tp_overlap;
    if (defers || covers) attach_all(defers);
    if (nn::Parameter* weight = head_weight()) weight->grad.queue = &head_;
  }
  ~WeightGradQueues() {
    for (const auto& chunk : models_)
      for (const auto& parameter : chunk->parameters().all()) parameter->grad.queue = nullptr;
  }
  WeightGradQueues(const WeightGradQueues&) = delete;
  WeightGradQueues& operator=(const WeightGradQueues&) = delete;

  std::vector<nn::WeightGradQueue*> by_chunk() {
    std::vector<nn::WeightGradQueue*> all;
    for (nn::WeightGradQueue& queue : queues_) all.push_back(&queue);
    return all;
  }
  pipeline::DeferredHead head() {
    if (head_weight() == nullptr) return {};
    return {&head_, deferred_heads_};
  }

 private:
  // Returns the weight whose gradient is deferred alone; nullptr if none is, or if the head is on another stage.
  nn::Parameter* head_weight() const {
    const model::Head* head = models_[models_.size() - 1].head();
    return deferred_heads_ > 0 && head != nullptr ? head->projection() : nullptr;
  }
  // One queue per chunk; they do not move once parameters know them.
  void attach_all(bool defers) {
    for (size_t chunk = 0; chunk < models_.size(); ++chunk)
      queues_.push_back(defers ? nn::WeightGradQueue() : nn::WeightGradQueue::for_cover());
    for (size_t chunk = 0; chunk < models_.size(); ++chunk)
      for (const auto& parameter : models_[chunk].parameters().all()) parameter->grad.queue = &queues_[chunk];
  }

  model::VirtualModels& models_;
  std::vector<nn::WeightGradQueue> queues_;
  const int deferred_heads_;
  nn::WeightGradQueue head_{/*keeps_logits=*/true};
};

// Megatron's names of the timers. A pair has one of its own: its two passes alternate.
TraceLabel label_of(const layout::PipelineAction& action) {
  using Kind = layout::PipelineAction::Kind;
  const char* name = action.with_next                 ? "forward-backward-compute"
                     : action.kind == Kind::kForward  ? "forward-compute"
                     : action.kind == Kind::kBackward ? "backward-compute"
                                                      : "weight-gradient-compute";
  return {.name = name, .level = 2, .microbatch = action.microbatch, .chunk = action.chunk};
}

// Returns a callback that records a span for each action of the schedule.
std::function<void(const layout::PipelineAction&, bool)> trace_actions(TraceRecorder& trace) {
  // Shared, because std::function copies what it calls.
  return [&trace, open = std::make_shared<std::optional<TraceRecorder::Scope>>()](const layout::PipelineAction& action,
                                                                                  bool begins) {
    open->reset();
    if (begins) open->emplace(trace.span(label_of(action)));
  };
}

// While it lives, the objective and the model show their copies to and from the host in the timeline.
class ShownCopies {
 public:
  ShownCopies(Objective& objective, const model::VirtualModels& models, TraceRecorder& trace)
      : objective_(objective), models_(models) {
    show(&trace);
  }
  ~ShownCopies() { show(nullptr); }
  ShownCopies(const ShownCopies&) = delete;
  ShownCopies& operator=(const ShownCopies&) = delete;

 private:
  void show(TraceRecorder* trace) const {
    objective_.set_trace(trace);
    for (const auto& chunk : models_) chunk->set_trace(trace);
  }

  Objective& objective_;
  const model::VirtualModels& models_;
};

}  // namespace

pipeline::EngineSettings engine_settings(const model::ModelConfig& model, at::ScalarType dtype, bool overlap) {
  return {.hidden = model.hidden_size, .dtype = dtype, .overlap = overlap};
}

MicrobatchRunner::MicrobatchRunner(model::VirtualModels& models, const StepSettings& settings,
                                   const parallel::ParallelContext& context, Objective& objective, TraceRecorder& trace)
    : models_(models),
      settings_(settings),
      context_(context),
      objective_(objective),
      trace_(trace),
      engine_(context,
              engine_settings(models.config(), models[0].options().stream_dtype(), settings.overlap_p2p_comm)) {}

MicrobatchRunner::~MicrobatchRunner() = default;

bool MicrobatchRunner::speaks_for_replica() const { return context_.is_last_stage() && context_.place().tp_rank == 0; }
bool MicrobatchRunner::counts_for_replica() const { return speaks_for_replica() && context_.place().cp_rank == 0; }

std::vector<std::string> MicrobatchRunner::attached_losses() const {
  if (!objective_.trains_attached()) return {};
  return attached_loss_names(models_.config());
}

std::vector<data::MicroBatch> MicrobatchRunner::own_part(std::span<const data::MicroBatch> whole, Phase phase) const {
  const bool predicts = std::ranges::any_of(models_, [](const auto& chunk) { return chunk->place().mtp; });
  const bool trains = predicts && phase == Phase::kTraining;
  return rank_microbatches(whole, {.cp_rank = context_.place().cp_rank,
                                   .cp = context_.grid().shape().cp,
                                   .mtp_layers = trains ? std::ssize(attached_losses()) : 0});
}

bool MicrobatchRunner::smooths_labels() const { return models_[0].options().loss.label_smoothing > 0; }

layout::PipelineShape MicrobatchRunner::shape(int microbatches, Phase phase) const {
  return settings_.shape(microbatches, phase == Phase::kEvaluation);
}

// The engine needs the rows of each hidden state to allocate receive buffers; with sequence parallelism a rank holds
// 1/tp of them.
pipeline::StepPlan MicrobatchRunner::plan(std::span<const data::MicroBatch> batches, Phase phase) const {
  const layout::GridShape& grid = context_.grid().shape();
  pipeline::StepPlan plan{shape(static_cast<int>(batches.size()), phase), {}};
  for (const data::MicroBatch& batch : batches)
    plan.rows.push_back(batch.tokens() / (models_[0].options().sequence_parallel ? grid.tp : 1));
  return plan;
}

// Ends: every schedule accepts some multiple of the number of stages.
int MicrobatchRunner::evaluation_group(int count) const {
  while (!layout::problems(shape(count, Phase::kEvaluation)).empty()) ++count;
  return count;
}

double MicrobatchRunner::aux_loss_scale(float loss_scale, size_t microbatches) const {
  const layout::GridShape& grid = context_.grid().shape();
  const int sharers = grid.cp * (models_[0].options().sequence_parallel ? grid.tp : 1);  // each holds its tokens' share
  // Per token: a rank multiplies by its own tokens, and gradients are divided by all tokens. Otherwise gradients are
  // averaged over cp.
  if (per_token_loss()) return static_cast<double>(loss_scale) * sharers;
  return static_cast<double>(loss_scale) * grid.cp / static_cast<double>(microbatches);
}

double MicrobatchRunner::backward_factor(int64_t count, float loss_scale, size_t microbatches) const {
  double factor = loss_scale;
  if (!per_token_loss())  // ×cp: see the top
    factor *= static_cast<double>(context_.grid().shape().cp) /
              (static_cast<double>(std::max<int64_t>(count, 1)) * static_cast<double>(microbatches));
  return factor;
}

// Multiplying by 1 would launch a kernel and keep another node of the graph alive.
at::Tensor MicrobatchRunner::start_of_backward(const MicrobatchLoss& loss, float loss_scale,
                                               size_t microbatches) const {
  const double factor = backward_factor(loss.count, loss_scale, microbatches);
  at::Tensor start = factor == 1 ? loss.sum : loss.sum * factor;
  for (const AttachedLoss& attached : loss.attached)
    start = start + attached.sum * (attached.factor * backward_factor(attached.count, loss_scale, microbatches));
  return start;
}

at::Tensor MicrobatchRunner::forward(const StageCall& call, const data::MicroBatch& batch, Phase phase,
                                     std::vector<MicrobatchLoss>& losses) const {
  const model::GptModel& chunk = models_[static_cast<size_t>(call.chunk)];
  if (!chunk.place().head) return objective_.run_stage(batch, chunk, call.input, call.microbatch, phase);
  losses.push_back(objective_.run_head(batch, chunk, call.input, call.microbatch, phase));
  return losses.back().sum;
}

std::vector<MicrobatchLoss> MicrobatchRunner::train(std::span<const data::MicroBatch> whole, const BackwardPass& pass) {
  check_extras(whole, objective_);
  const std::vector<data::MicroBatch> batches = own_part(whole, Phase::kTraining);
  objective_.begin(whole, Phase::kTraining);
  const ShownCopies copies(objective_, models_, trace_);
  // Known before the forward pass, so that a fused head can compute gradients together with the loss.
  objective_.set_loss_grad([this, scale = pass.loss_scale, count = batches.size()](int64_t tokens) {
    return backward_factor(tokens, scale, count);
  });
  for (const auto& chunk : models_) chunk->set_aux_loss_scale(aux_loss_scale(pass.loss_scale, batches.size()));
  std::vector<MicrobatchLoss> losses;
  if (graphs_)
    run_graphs(batches, pass, losses);
  else
    run_schedule(batches, pass, losses);
  return losses;
}

void MicrobatchRunner::run_schedule(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                                    std::vector<MicrobatchLoss>& losses) const {
  if (stages_) {
    warn_if_never_graphed(batches.size(), pass);
    stages_->begin_step();
  }
  pipeline::StageWork work;
  work.forward = [&](const StageCall& call) {
    at::Tensor start = stages_ ? replayed_forward(call, batches, pass, losses) : at::Tensor();
    if (!start.defined()) {
      const at::Tensor output = forward(call, batches[static_cast<size_t>(call.microbatch)], Phase::kTraining, losses);
      if (!call.last_stage) return output;
      start = start_of_backward(losses.back(), pass.loss_scale, batches.size());
      losses.back().sum = output.detach();
    }
    if (!call.last_stage) return start;
    losses.back().on_host.emplace(losses.back().sum);  // started before backward, so that it does not queue after it
    for (AttachedLoss& attached : losses.back().attached) attached.sum = attached.sum.detach();
    if (pass.on_loss) pass.on_loss(losses.back());
    return start;
  };
  work.set_sync = [&](int chunk, bool on) { pass.chunks[static_cast<size_t>(chunk)]->set_sync(on); };
  work.start_grad_reduce = [&](int chunk) { pass.chunks[static_cast<size_t>(chunk)]->start_grad_sync(); };
  const bool one_stage = context_.grid().shape().pp == 1;
  work.watch = [&, trace = trace_actions(trace_)](const layout::PipelineAction& action, bool begins) {
    trace(action, begins);
    if (begins || !one_stage || !pass.substep_end) return;
    // A pair ends the micro-batch before that of its forward, which is never the last.
    const bool backward = action.kind == layout::PipelineAction::Kind::kBackward;
    if (action.with_next || (backward && action.microbatch + 1 < std::ssize(batches))) pass.substep_end();
  };
  const pipeline::StepPlan step = plan(batches, Phase::kTraining);
  WeightGradQueues queues(models_, step.shape.kind, settings_.deferred_heads);
  work.weight_gradients = queues.by_chunk();
  work.head = queues.head();
  engine_.run(step, work);
  if (stages_) stages_->end_step();
}

at::Tensor MicrobatchRunner::replayed_forward(const StageCall& call, std::span<const data::MicroBatch> batches,
                                              const BackwardPass& pass, std::vector<MicrobatchLoss>& losses) const {
  const auto number = static_cast<size_t>(call.microbatch);
  if (communicates(number, batches.size(), pass)) return {};
  StageCall recorded = call;
  recorded.input.reset();
  const auto work = [this, recorded, scale = pass.loss_scale, count = batches.size()](const data::MicroBatch& batch,
                                                                                      const at::Tensor& input) {
    StageCall here = recorded;
    here.input = input;
    std::vector<MicrobatchLoss> own;
    StagePass result{forward(here, batch, Phase::kTraining, own), {}};
    if (!here.last_stage) return result;
    MicrobatchLoss& loss = own.back();
    result.output = start_of_backward(loss, scale, count);
    loss.sum = loss.sum.detach();
    for (MicrobatchMetric& metric : loss.metrics) metric.sum = metric.sum.detach();
    result.loss = std::move(loss);
    return result;
  };
  optim::DistributedDataParallel& gradients = *pass.chunks[static_cast<size_t>(call.chunk)];
  gradients.finish_param_gather();  // a recorded pass must not wait for what it does not hold
  // Labels matter where the loss is computed, or to an objective that is not known.
  std::vector<double> constants{aux_loss_scale(pass.loss_scale, batches.size())};
  if (call.last_stage || !objective_.sums_token_losses())
    constants = graph_constants(batches[number], pass.loss_scale, batches.size());
  std::optional<StagePass> replayed = stages_->forward(call, batches[number], std::move(constants), gradients, work);
  if (!replayed) return {};
  if (replayed->loss) {
    if (objective_.sums_token_losses()) replayed->loss->count = batches[number].loss_tokens;
    losses.push_back(std::move(*replayed->loss));
  }
  return replayed->output;
}

bool MicrobatchRunner::start_graphs() {
  const GraphRun run{.grid = context_.grid().shape(),
                     .on_cuda = context_.device().is_cuda(),
                     .nccl = context_.world().backend() == "nccl",
                     .recordable_loss = objective_.recordable(),
                     .records_draws = parallel::can_record_draws(context_.device()),
                     .schedule = settings_.pipeline.kind,
                     .defers_heads = settings_.deferred_heads > 0};
  const std::string why = graph_obstacle(models_[0].options(), models_.config(), run);
  if (!why.empty()) {
    if (context_.rank() == 0) log_warning("cuda_graph_impl local is not used: {}", why);
    return false;
  }
  comm::use_plain_segments();
  use_graphs(make_device_graph);
  return true;
}

void MicrobatchRunner::use_graphs(MakeDeviceGraph make) {
  const comm::Group sharers = context_.group(layout::GroupKind::kTpCp);
  AgreeOnGraphs agree;
  if (sharers.size() > 1)
    agree = [sharers](bool mine) {
      const at::Tensor all = at::full({}, mine ? 1 : 0, at::TensorOptions(at::kFloat).device(sharers.device()));
      sharers.all_reduce(all, comm::ReduceOp::kMin, "success of recording a graph");
      return ops::HostScalar(all).value() > 0;
    };
  if (context_.grid().shape().pp > 1)
    stages_ = std::make_unique<GraphedStages>(models_, settings_.graph_warmup_steps, std::move(agree), std::move(make));
  else
    graphs_ = std::make_unique<GraphedMicrobatches>(models_[0], settings_.graph_warmup_steps, std::move(agree),
                                                    std::move(make));
}

void MicrobatchRunner::stop_graphs() {
  graphs_.reset();
  stages_.reset();
}

int MicrobatchRunner::recorded_graphs() const {
  return graphs_ ? graphs_->recorded() : stages_ ? stages_->recorded() : 0;
}

// An objective that is not known may read more of a micro-batch on the host than the factor of the loss.
std::vector<double> MicrobatchRunner::graph_constants(const data::MicroBatch& batch, float loss_scale,
                                                      size_t microbatches) const {
  std::vector<double> constants{backward_factor(batch.loss_tokens, loss_scale, microbatches),
                                aux_loss_scale(loss_scale, microbatches)};
  if (!objective_.sums_token_losses())
    for (const int64_t count : {batch.loss_tokens, batch.real_tokens, batch.samples})
      constants.push_back(static_cast<double>(count));
  return constants;
}

bool MicrobatchRunner::communicates(size_t microbatch, size_t microbatches, const BackwardPass& pass) const {
  const bool reduces =
      pass.chunks[0]->settings().overlap_grad_reduce && context_.group(layout::GroupKind::kDpCp).size() > 1;
  return (microbatch == 0 && pass.gathers_params) || (microbatch + 1 == microbatches && reduces);
}

void MicrobatchRunner::warn_if_never_graphed(size_t microbatches, const BackwardPass& pass) const {
  if (warned_of_overlap_) return;
  for (size_t i = stages_ ? 1 : 0; i < microbatches; ++i)
    if (!communicates(i, microbatches, pass)) return;
  warned_of_overlap_ = true;
  if (context_.rank() == 0 && stages_)
    log_warning(
        "cuda_graph_impl local is not used in steps of {} micro-batch(es): with pipeline stages the first one runs"
        " without a graph, and the last one if overlap_grad_reduce is on; use more (gradient_accumulation_steps)",
        microbatches);
  else if (context_.rank() == 0)
    log_warning(
        "cuda_graph_impl local is not used in steps of {} micro-batch(es): overlap_grad_reduce takes the last one{},"
        " during which ranks communicate; use more micro-batches (gradient_accumulation_steps), or switch it off",
        microbatches, pass.gathers_params ? " and overlap_param_gather the first" : "");
}

void MicrobatchRunner::run_graphs(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                                  std::vector<MicrobatchLoss>& losses) const {
  warn_if_never_graphed(batches.size(), pass);
  graphs_->begin_step();
  optim::DistributedDataParallel& gradients = *pass.chunks[0];
  const WeightGradQueues queues(models_, layout::ScheduleKind::kNone, /*deferred_heads=*/0);
  const auto work = [&](const data::MicroBatch& batch) {
    MicrobatchLoss loss = objective_.run_head(batch, models_[0], {}, /*microbatch=*/0, Phase::kTraining);
    start_of_backward(loss, pass.loss_scale, batches.size()).backward();
    loss.sum = loss.sum.detach();
    for (MicrobatchMetric& metric : loss.metrics) metric.sum = metric.sum.detach();
    return loss;
  };
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i > 0 && pass.substep_end) pass.substep_end();
    const auto span =
        trace_.span({.name = "forward-backward-graph", .level = 2, .microbatch = static_cast<int>(i), .chunk = 0});
    std::optional<MicrobatchLoss> loss;
    if (communicates(i, batches.size(), pass)) {
      gradients.set_sync(i + 1 == batches.size());
      loss = work(batches[i]);
    } else {
      // Gradients only accumulate; finalize_gradients reduces those that no backward pass has started to reduce.
      const optim::DistributedDataParallel::NoSync accumulate(gradients);
      gradients.finish_param_gather();  // a recorded pass must not wait for what it does not hold
      loss = graphs_->run(batches[i], graph_constants(batches[i], pass.loss_scale, batches.size()), work);
      if (!loss) loss = work(batches[i]);
    }
    if (objective_.sums_token_losses()) loss->count = batches[i].loss_tokens;  // not that of the recorded micro-batch
    losses.push_back(std::move(*loss));
    losses.back().on_host.emplace(losses.back().sum);
    if (pass.on_loss) pass.on_loss(losses.back());
  }
  gradients.set_sync(true);
}

// Forward only: the same engine and schedule without backward actions, and never with graphs.
std::vector<MicrobatchLoss> MicrobatchRunner::evaluate(std::span<const data::MicroBatch> whole) {
  check_extras(whole, objective_);
  const std::vector<data::MicroBatch> batches = own_part(whole, Phase::kEvaluation);
  objective_.begin(whole, Phase::kEvaluation);
  const ShownCopies copies(objective_, models_, trace_);
  std::vector<MicrobatchLoss> losses;
  pipeline::StageWork work;
  work.forward = [&](const StageCall& call) {
    return forward(call, batches[static_cast<size_t>(call.microbatch)], Phase::kEvaluation, losses);
  };
  work.watch = trace_actions(trace_);
  engine_.run(plan(batches, Phase::kEvaluation), work);
  return losses;
}

}  // namespace megalith::train
