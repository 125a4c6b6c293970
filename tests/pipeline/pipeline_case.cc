#include "tests/pipeline/pipeline_case.h"

#include <ATen/ATen.h>

#include <numeric>
#include <random>

#include "megalith/config/derive.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/optim/finalize.h"
#include "tests/support/close.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {

namespace {

int64_t total(const Lengths& lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

// A micro-batch of this rank.
struct Microbatch {
  ops::SequenceLayout layout;
  at::Tensor ids, targets;
  int64_t tokens;  // with a target
};

}  // namespace

std::string PipelineCase::name() const {
  return fmt::format("{} pp {} chunks {} tp {} dp {}{}{}{}{}", layout::name(kind), pp, chunks(), tp, dp,
                     sequence_parallel ? " sp" : "", engine.overlap ? " overlap" : "",
                     ddp.overlap_grad_reduce ? " overlap_grad_reduce" : "",
                     group_size ? fmt::format(" group {}", *group_size) : "");
}

at::Tensor ids_of(const std::vector<Lengths>& microbatches, size_t number, int64_t vocab) {
  int64_t before = 0;
  for (size_t i = 0; i < number; ++i) before += total(microbatches[i]);
  const at::Tensor n = at::arange(before, before + total(microbatches[number]), at::kLong);
  return (n * 7919 + n.div(3, "floor") * 104729 + 11).remainder(vocab);
}

std::vector<Lengths> equal_microbatches(int count, int sequences, int64_t length) {
  return std::vector<Lengths>(static_cast<size_t>(count), Lengths(static_cast<size_t>(sequences), length));
}

std::vector<Lengths> unequal_microbatches(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Lengths> all;
  for (int i = 0; i < count; ++i) {
    Lengths lengths;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) lengths.push_back(2 + static_cast<int64_t>(random() % 7));
    lengths.push_back(2 + (4 - (total(lengths) + 2) % 4) % 4);
    all.push_back(lengths);
  }
  return all;
}

void expect_same_step(const SmallModel::Step& actual, const SmallModel::Step& expected, const std::string& what) {
  expect_close(actual.loss, expected.loss, what + ": loss");
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size()) << what;
  for (const auto& [name, gradient] : expected.gradients)
    expect_close(actual.gradients.at(name), gradient, what + ": gradient of " + name);
}

// ---- The reference ---------------------------------------------------------------------------------------

SmallModel::SmallModel(const ReferenceConfig& config) : config_(config) {
  const ReferenceModel model = ReferenceModel::random(config, 1);
  // Gentle layers, so that rounding does not grow from layer to layer.
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters())
    if (parameter.dim() == 2) parameter.mul_(0.5);
  model.save(folder());
}

SmallModel::Step SmallModel::reference(const std::vector<Lengths>& microbatches) const {
  const ReferenceModel model = ReferenceModel::from_folder(folder()).to(at::kDouble);
  std::vector<at::Tensor> ids;
  ReferenceInput input{.position_ids = {}, .cu_seqlens = {0}};
  for (size_t i = 0; i < microbatches.size(); ++i) {
    ids.push_back(ids_of(microbatches, i, config_.vocab_size));
    for (const int64_t length : microbatches[i]) input.cu_seqlens.push_back(input.cu_seqlens.back() + length);
  }
  const at::Tensor row = at::cat(ids).unsqueeze(0);
  const at::Tensor losses = reference_token_losses(model.forward(row, input).logits, row, input.cu_seqlens);
  const at::Tensor loss = losses.sum() / reference_label_count(row, input.cu_seqlens);
  loss.backward();
  Step step{loss.item<double>(), {}};
  for (const auto& [name, parameter] : model.parameters()) step.gradients[name] = model.grad(name);
  return step;
}

SmallModel::Step SmallModel::run(const std::vector<Lengths>& microbatches, const PipelineCase& how) const {
  Step result{0, whole_tensors(model::read_model_config(folder()))};
  std::vector<double> losses(static_cast<size_t>(how.ranks()));
  const auto body = [&](const Rank& rank) {
    PipelineRank stage(rank, folder(), how);
    losses[static_cast<size_t>(rank.rank)] = stage.step(microbatches);
    fill_in(result.gradients, stage.models(), [](const nn::Parameter& p) { return p.grad.main_grad; });
  };
  if (how.gloo)
    run_gloo_ranks(how.ranks(), body);
  else
    run_ranks(how.ranks(), body);
  for (const double loss : losses) EXPECT_EQ(loss, losses[0]) << "a rank knows another loss";
  result.loss = losses[0];
  return result;
}

// ---- A rank ----------------------------------------------------------------------------------------------

struct PipelineRank::State {
  PipelineCase how;
  parallel::ParallelContext context;
  model::VirtualModels models;
  std::vector<nn::WeightGradQueue> queues;
  nn::WeightGradQueue head_queue{/*keeps_logits=*/true};
  std::vector<std::unique_ptr<optim::DistributedDataParallel>> ddp;
  std::optional<pipeline::ForwardBackward> engine;
  pipeline::StageWork work;
  // The micro-batches of the step that runs.
  std::vector<Microbatch> microbatches;
  double loss = 0;
  bool training = true;

  static model::ModelOptions options_of(const PipelineCase& how) {
    model::ModelOptions options = how.options;
    options.sequence_parallel = how.sequence_parallel;
    return options;
  }

  State(const Rank& rank, const std::filesystem::path& folder, const PipelineCase& how_)
      : how(how_),
        context(rank.world, layout::RankGrid({.world_size = rank.size, .tp = how.tp, .pp = how.pp})),
        models(model::read_model_config(folder), options_of(how),
               model::chunk_places(config::split_request(how.pipeline), model::read_model_config(folder), context),
               context),
        queues(models.size()) {
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    model::load_weights(models, folder, models.config(), 1);
    for (size_t chunk = 0; chunk < models.size(); ++chunk) {
      std::vector<nn::Parameter*> parameters;
      for (const auto& p : models[chunk].parameters().all()) {
        p->grad.queue = &queues[chunk];
        parameters.push_back(p.get());
      }
      ddp.push_back(std::make_unique<optim::DistributedDataParallel>(parameters, how.ddp, context));
      work.weight_gradients.push_back(&queues[chunk]);
    }
    const model::Head* head = models[models.size() - 1].head();
    if (how.deferred_heads > 0 && head != nullptr) {
      head->projection()->grad.queue = &head_queue;
      work.head = {&head_queue, how.deferred_heads};
    }
    how.engine.hidden = models.config().hidden_size;
    how.engine.dtype = how.options.stream_dtype();
    engine.emplace(context, how.engine);
    work.forward = [this](const pipeline::StageCall& call) { return forward(call); };
    work.set_sync = [this](int chunk, bool on) { ddp[static_cast<size_t>(chunk)]->set_sync(on); };
    work.start_grad_reduce = [this](int chunk) { ddp[static_cast<size_t>(chunk)]->start_grad_sync(); };
  }

  at::Tensor forward(const pipeline::StageCall& call) {
    const Microbatch& m = microbatches[static_cast<size_t>(call.microbatch)];
    model::ModelInput input{.layout = m.layout, .hidden = call.input, .training = training};
    // The others never see them.
    const model::GptModel& chunk = models[static_cast<size_t>(call.chunk)];
    std::vector<at::Tensor> further;  // losses of multi-token prediction
    if (chunk.place().reads_ids()) input.ids = m.ids;
    if (call.last_stage) input.targets = m.targets;
    if (call.last_stage && training && how.loss_at_once) input.loss_grad = 1;  // backward starts from the sum
    if (training && chunk.place().mtp) {
      input.mtp_losses = &further;
      input.ahead = model::tokens_ahead(m.ids, m.targets, m.layout, chunk.config().mtp_layers);
    }
    const at::Tensor out = chunk.forward(input);
    if (!call.last_stage) return out;
    at::Tensor sum = out.sum();
    loss += sum.item<double>();
    for (const at::Tensor& each : further)
      sum = sum + each.sum() * (chunk.config().mtp_loss_factor / static_cast<double>(further.size()));
    return sum;
  }

  void read(const std::vector<Lengths>& all) {
    const comm::Group dp = context.dp();
    const size_t each = all.size() / static_cast<size_t>(dp.size());
    microbatches.clear();
    for (size_t i = 0; i < each; ++i) {
      const size_t number = static_cast<size_t>(dp.rank()) * each + i;
      Microbatch m{.layout = ops::SequenceLayout::packed(all[number]), .ids = {}, .targets = {}, .tokens = 0};
      m.ids = ids_of(all, number, models.config().vocab_size);
      m.targets = model::shift_labels(m.ids, m.layout);
      m.tokens = m.targets.ge(0).sum().item<int64_t>();
      microbatches.push_back(m);
    }
  }

  pipeline::StepPlan plan() const {
    pipeline::StepPlan plan{.shape = {.kind = how.kind,
                                      .pp = how.pp,
                                      .chunks = how.chunks(),
                                      .microbatches = static_cast<int>(microbatches.size()),
                                      .group_size = how.group_size,
                                      .forward_only = !training,
                                      .sync = training ? how.sync : layout::PipelineSync::kLeaveOut},
                            .rows = {}};
    for (const Microbatch& m : microbatches)
      plan.rows.push_back(m.layout.tokens() / (how.sequence_parallel ? how.tp : 1));
    return plan;
  }

  double run(const std::vector<Lengths>& all) {
    read(all);
    loss = 0;
    if (training)
      for (const auto& chunk : ddp) chunk->zero_grad();
    engine->run(plan(), work);
    int64_t tokens = 0;
    for (const Microbatch& m : microbatches) tokens += m.tokens;
    if (training) {
      std::vector<optim::DistributedDataParallel*> chunks;
      for (const auto& chunk : ddp) chunks.push_back(chunk.get());
      optim::finalize_gradients(chunks, context, tokens);
    }
    const at::Tensor sums = at::tensor({loss, static_cast<double>(tokens)}, at::kDouble);
    context.dp().all_reduce(sums);
    context.pp().broadcast(sums, how.pp - 1);
    return sums[0].item<double>() / sums[1].item<double>();
  }
};

PipelineRank::PipelineRank(const Rank& rank, const std::filesystem::path& folder, const PipelineCase& how)
    : state_(std::make_unique<State>(rank, folder, how)) {}
PipelineRank::~PipelineRank() = default;

double PipelineRank::step(const std::vector<Lengths>& microbatches) {
  state_->training = true;
  return state_->run(microbatches);
}

double PipelineRank::evaluate(const std::vector<Lengths>& microbatches) {
  state_->training = false;
  return state_->run(microbatches);
}

pipeline::StageWork& PipelineRank::work() { return state_->work; }
model::VirtualModels& PipelineRank::models() { return state_->models; }
parallel::ParallelContext& PipelineRank::context() { return state_->context; }
std::vector<optim::DistributedDataParallel*> PipelineRank::ddp() const {
  std::vector<optim::DistributedDataParallel*> chunks;
  for (const auto& chunk : state_->ddp) chunks.push_back(chunk.get());
  return chunks;
}

}  // namespace megalith::testing
