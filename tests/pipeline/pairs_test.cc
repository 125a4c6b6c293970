// Forward and backward of different micro-batches that run together (layout::PipelineShape::paired): layers of experts
// over two ranks, against the same steps one pass after the other, bit for bit; the order of their exchanges; errors.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/trace.h"
#include "megalith/comm/world.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/moe/moe_layer.h"
#include "megalith/nn/recompute.h"
#include "megalith/pipeline/forward_backward.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using layout::ScheduleKind;

constexpr int64_t kPairHidden = 12;

// A model of expert layers alone, in chunks.
struct PairCase {
  std::string name;
  int tp = 1, pp = 1, chunks = 1, ep = 2, layers = 2;  // layers per chunk
  int microbatches = 3;
  nn::MoeOptions options{};
  int64_t shared_width = 0;
  std::optional<double> capacity{};
  bool pads = false;
  bool recomputes = false;  // every layer runs again in backward, with dropout
  bool paired = true;

  int dp() const { return ep / tp; }
  int ranks() const { return tp * pp * dp(); }
  layout::PipelineShape shape() const {
    return {.kind = chunks > 1 ? ScheduleKind::kInterleaved : ScheduleKind::kNone,
            .pp = pp,
            .chunks = chunks,
            .microbatches = microbatches,
            .paired = paired};
  }
  nn::MoeShape moe() const {
    nn::MoeShape shape{
        .router = {.experts = 4, .topk = 2}, .hidden = kPairHidden, .width = 8, .shared_width = shared_width};
    shape.router.capacity_factor = capacity;
    shape.router.pad_to_capacity = pads;
    return shape;
  }
};

at::Tensor drawn(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

// One rank of the model.
class ExpertStages {
 public:
  ExpertStages(const PairCase& how, comm::World& world)
      : how_(how),
        context_(world,
                 layout::RankGrid({.world_size = how.ranks(), .tp = how.tp, .pp = how.pp, .ep = how.ep, .etp = 1})),
        set_(at::kFloat, at::kCPU) {
    const nn::TensorParallel tp{context_.tp(), how.tp > 1};
    for (int i = 0; i < how.chunks * how.layers; ++i)
      layers_.push_back(std::make_unique<nn::MoeLayer>(nn::ParameterScope(set_).child(std::to_string(i)), how.moe(),
                                                       how.options, tp, context_));
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < set_.all().size(); ++i) {
      const at::Tensor& value = set_.all()[i]->value;
      value.copy_(drawn(value.sizes(), i).mul_(0.3));
    }
  }

  // Runs one step.
  void run() {
    pipeline::StepPlan plan{how_.shape(), {}};
    for (int m = 0; m < how_.microbatches; ++m) plan.rows.push_back(rows(m));
    pipeline::StageWork work;
    work.forward = [this](const pipeline::StageCall& call) { return forward(call); };
    pipeline::ForwardBackward(context_, {.hidden = kPairHidden, .overlap = true}).run(plan, work);
  }

  // Returns the losses and all gradients.
  std::map<std::string, at::Tensor> results() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& parameter : set_.all()) all[parameter->spec.name] = parameter->value.grad();
    for (size_t i = 0; i < losses_.size(); ++i) all[fmt::format("loss {}", i)] = losses_[i];
    for (const auto& [number, input] : inputs_) all[fmt::format("input {}", number)] = input.grad();
    return all;
  }

  // Called with "F1" before layer `layer` of a forward pass, and with "B1" before that of a backward pass.
  std::function<void(const std::string& pass, int layer)> on_layer;

 private:
  // Ranks have different numbers of tokens, unless they share a sequence.
  int64_t rows(int microbatch) const { return 6 + 2 * (microbatch % 3) + (how_.tp > 1 ? 0 : context_.place().dp_rank); }

  at::Tensor forward(const pipeline::StageCall& call) {
    at::Tensor x = call.input;
    if (call.first_stage)
      x = inputs_[call.microbatch] = drawn({rows(call.microbatch), kPairHidden}, 77 + call.microbatch).requires_grad_();
    nn::LayerInput input;
    input.layout = ops::SequenceLayout::packed({x.size(0) * how_.tp});
    for (int i = 0; i < how_.layers; ++i) {
      if (on_layer) on_layer(fmt::format("F{}", call.microbatch), i);
      x = run_layer(*layers_[static_cast<size_t>(call.chunk * how_.layers + i)], x, input);
      if (on_layer)
        x.register_hook(
            [this, i, pass = fmt::format("B{}", call.microbatch)](const at::Tensor&) { on_layer(pass, i); });
    }
    if (!call.last_stage) return x;
    losses_.push_back((x * drawn(x.sizes(), 5)).sum());
    const at::Tensor loss = losses_.back();
    losses_.back() = loss.detach();
    return loss;
  }

  at::Tensor run_layer(const nn::MoeLayer& layer, const at::Tensor& x, const nn::LayerInput& input) {
    if (!how_.recomputes) return layer.forward(x, x, input);
    const auto region = [this, &layer, input](const nn::TensorList& in) {
      const at::Tensor mask = at::empty_like(in[0]).bernoulli_(0.8, context_.rng().generator());
      return layer.forward(in[0] * mask, in[0], input);
    };
    return nn::recompute(region, {x}, &context_.rng());
  }

  const PairCase& how_;
  parallel::ParallelContext context_;
  nn::ParameterSet set_;
  std::vector<std::unique_ptr<nn::MoeLayer>> layers_;
  std::vector<at::Tensor> losses_;
  std::map<int, at::Tensor> inputs_;  // the first stage's, by micro-batch
};

// By rank.
std::vector<std::map<std::string, at::Tensor>> results_of(const PairCase& how) {
  std::vector<std::map<std::string, at::Tensor>> all(static_cast<size_t>(how.ranks()));
  run_ranks(how.ranks(), [&](const Rank& r) {
    ExpertStages stages(how, r.world);
    stages.run();
    all[static_cast<size_t>(r.rank)] = stages.results();
  });
  return all;
}

TEST(Pairs, GiveTheSameBitsAsOnePassAfterTheOther) {
  std::vector<PairCase> cases{
      {.name = "one stage"},
      {.name = "one micro-batch", .microbatches = 1},
      {.name = "four ranks", .ep = 4, .microbatches = 5},
      {.name = "shared experts", .shared_width = 8},
      {.name = "shared experts beside the exchange", .options = {.overlap_shared = true}, .shared_width = 8},
      {.name = "capacity", .capacity = 0.7},
      {.name = "padded capacity", .capacity = 1.0, .pads = true},
      {.name = "tensor parallel", .tp = 2},
      {.name = "recomputed activation", .options = {.recompute_activation = true}},
      {.name = "recomputed layers", .recomputes = true},
      {.name = "virtual stages", .pp = 2, .chunks = 2, .microbatches = 4},
      {.name = "virtual stages of recomputed layers", .pp = 2, .chunks = 2, .microbatches = 6, .recomputes = true},
      {.name = "three virtual stages", .pp = 2, .chunks = 3, .layers = 1, .microbatches = 4, .shared_width = 8},
  };
  for (PairCase& how : cases) {
    SCOPED_TRACE(how.name);
    const auto together = results_of(how);
    how.paired = false;
    const auto apart = results_of(how);
    for (size_t rank = 0; rank < apart.size(); ++rank) {
      ASSERT_EQ(together[rank].size(), apart[rank].size());
      for (const auto& [name, expected] : apart[rank]) {
        ASSERT_EQ(together[rank].at(name).defined(), expected.defined()) << name;
        if (!expected.defined()) continue;
        EXPECT_TRUE(together[rank].at(name).equal(expected)) << name << " on rank " << rank;
        EXPECT_GT(expected.abs().max().item<double>(), 0) << name;
      }
    }
  }
}

// Returns the beginnings and ends of a rank's exchanges in order: "f(" starts to send tokens, "f)" has waited for them;
// "b(" and "b)" are their gradients.
std::string exchanges_of(const PairCase& how) {
  std::string order;
  run_ranks(how.ranks(), [&](const Rank& r) {
    ExpertStages stages(how, r.world);
    TraceRecorder trace;
    trace.start_timeline();
    r.world.set_trace(&trace);
    stages.run();
    r.world.set_trace(nullptr);
    std::map<int64_t, std::string> events;
    for (const TraceSpan& span : trace.take_spans()) {
      const std::string purpose = span.label.purpose;
      if (!purpose.ends_with("tokens to experts and back")) continue;
      const std::string pass = purpose.starts_with("gradients") ? "b" : "f";
      events[span.begin_ns] += pass + "(";
      events[span.end_ns] += pass + ")";
    }
    if (r.rank != 0) return;
    for (const auto& [time, event] : events) order += event + " ";
  });
  return order;
}

// While tokens of one micro-batch travel, the other one computes up to its own next exchange: the waits are after it.
TEST(Pairs, OnePassComputesWhileTokensOfTheOtherTravel) {
  PairCase how{.layers = 1, .microbatches = 2};
  const std::string forward = "f( f) f( f) ", backward = "b( b) b( b) ";
  EXPECT_EQ(exchanges_of(how), forward + "b( f( b) b( f) f( b) f) " + backward);
  how.paired = false;
  EXPECT_EQ(exchanges_of(how), forward + backward + forward + backward);
  // The second run of a layer hands over as well; its exchanges come before those of the gradients.
  how.paired = how.recomputes = true;
  EXPECT_EQ(exchanges_of(how), forward + "f( f( f) f( f) f( f) b( f) b) b( b) " + "f( f) f( f) " + backward);
}

// Returns how each rank ends if rank 0 fails before a layer of a pass.
std::vector<std::string> pair_ends(const PairCase& how, const std::string& failing) {
  std::vector<std::string> ends(static_cast<size_t>(how.ranks()));
  const auto worlds = comm::World::in_process(how.ranks());
  std::vector<std::thread> threads;
  for (int r = 0; r < how.ranks(); ++r)
    threads.emplace_back([&, r] {
      comm::World& world = *worlds[static_cast<size_t>(r)];
      try {
        ExpertStages stages(how, world);
        if (r == 0)
          stages.on_layer = [&](const std::string& pass, int layer) {
            if (pass == failing && layer == 1) throw DataError(fmt::format("{} is broken", pass));
          };
        stages.run();
      } catch (const std::exception& error) {
        ends[static_cast<size_t>(r)] = error.what();
        world.report_failure(fmt::format("rank {}: {}", r, error.what()));
      }
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(Pairs, AnErrorInEitherPassEndsAllRanksWithIt) {
  for (const std::string failing : {"F1", "B0", "F2", "B1", "B2"}) {
    SCOPED_TRACE(failing);
    for (const std::string& end : pair_ends({}, failing)) expect_contains(end, failing + " is broken");
  }
}

}  // namespace
}  // namespace megalith::testing
