// How often the host would wait for the device in a step, counted without a device.
//
// An observer of libtorch's functions sees two kinds. Those that a step is meant to have are the waits of
// ops::HostTensor. Those that it is not meant to have: reading a number out of a tensor, copying a tensor to a device
// or back as such (on a GPU both block the host, and on the CPU the same calls are made), and operators whose result
// has a size that only the device knows.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "megalith/ops/kernel/host_values.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// The activity of one rank's host in a step.
struct ObservedStep {
  int waits = 0;
  int64_t newest = 0;                     // number of the newest copy that was waited for
  std::map<std::string, int> blocking{};  // calls of operators that would block
  std::map<std::string, int> messages{};  // collectives over several ranks by purpose
};

// The step of this thread; nullptr where nobody counts. A callback of libtorch has no other way to it.
thread_local ObservedStep* observed_step = nullptr;

bool names_a_device(const at::RecordFunction& call) {
  for (const c10::IValue& input : call.inputs())
    if (input.isDevice()) return true;
  return false;
}

std::unique_ptr<at::ObserverContext> observe_call(const at::RecordFunction& call) {
  if (observed_step == nullptr) return nullptr;
  static const std::set<std::string> reads{
      "aten::item",  "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero",
      "aten::equal", "aten::masked_select",       "aten::unique2", "aten::_unique2"};
  const std::string name = call.name();
  if (name == ops::kWaitForDevice) {  // a wait for a copy serves all that were queued before it
    const int64_t number = call.inputs()[0].toInt();
    if (number > observed_step->newest) ++observed_step->waits;
    observed_step->newest = std::max(observed_step->newest, number);
  }
  const bool moves = (name == "aten::to" || name == "aten::_to_copy") && names_a_device(call);
  if (moves || reads.contains(name)) ++observed_step->blocking[name];
  return nullptr;
}

// Counts from each on_step_begin to on_step_end of one rank.
class WaitCounter : public train::TrainerCallback {
 public:
  WaitCounter(std::vector<ObservedStep>& steps, TraceRecorder& trace)
      : steps_(steps),
        trace_(trace),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(observe_call).needsInputs(true))) {}
  ~WaitCounter() override {
    observed_step = nullptr;
    at::removeCallback(handle_);
  }

  void on_step_begin(train::TrainerEvent&) override {
    trace_.take_spans();
    steps_.emplace_back();
    observed_step = &steps_.back();
  }
  void on_step_end(train::TrainerEvent&) override {
    observed_step = nullptr;
    ObservedStep& step = steps_.back();
    for (const TraceSpan& span : trace_.take_spans())
      if (span.label.lane == TraceLane::kCommunication && *span.label.group != '\0')
        ++step.messages[span.label.purpose];
  }

 private:
  std::vector<ObservedStep>& steps_;
  TraceRecorder& trace_;
  const at::CallbackHandle handle_;
};

// Returns the steps of a run and sets `loss` to its mean loss.
std::vector<ObservedStep> steps_of(const TrainerRank& r, double& loss) {
  TraceRecorder trace;
  trace.start_timeline();
  r.rank.world.set_trace(&trace);
  std::vector<ObservedStep> steps;
  train::TrainerSetup setup = r.setup(dataset_of(random_sequences(32, 50, 1)));
  setup.callbacks.push_back(std::make_unique<WaitCounter>(steps, trace));
  setup.trace = &trace;
  train::TrainerSettings settings = r.settings();
  settings.update.gradients.checks_later = true;  // as on a GPU
  loss = train::Trainer(r.models, settings, std::move(setup)).train().training_loss;
  r.rank.world.set_trace(nullptr);
  return steps;
}

std::filesystem::path four_layers() {
  static const TempFolder folder;
  if (!std::filesystem::exists(folder / "config.json")) {
    ReferenceConfig config = ReferenceConfig::of_family("llama");
    config.num_layers = 4;
    ReferenceModel::random(config, 1).save(folder.path());
  }
  return folder.path();
}

std::vector<TrainerCase> dense_layouts() {
  std::vector<TrainerCase> all;
  const auto add = [&](std::string name, TrainerCase how, const std::function<void(TrainerCase&)>& change = {}) {
    how.name = std::move(name);
    how.args.batch.micro_batch_size = 1;
    how.args.batch.gradient_accumulation_steps = 4;
    how.args.run.max_steps = 3;
    if (change) change(how);
    all.push_back(std::move(how));
  };
  const auto distributed = [](TrainerCase& c) { c.args.optimizer.use_distributed_optimizer = true; };
  const auto overlapped = [](TrainerCase& c) {
    c.args.optimizer.use_distributed_optimizer = true;
    c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
    c.args.ddp.bucket_size = 5000;
  };
  const auto sequence_parallel = [](TrainerCase& c) { c.args.parallel.sequence_parallel = true; };
  const auto communication = [](const char* kind) {
    return [kind](TrainerCase& c) { c.args.parallel.cp_comm_type = {kind}; };
  };
  add("one rank", {});
  add("dp2", {.dp = 2});
  add("dp2, means of micro-batches", {.dp = 2}, [](TrainerCase& c) { c.args.ddp.calculate_per_token_loss = false; });
  add("dp2, no NaN check", {.dp = 2}, [](TrainerCase& c) { c.args.ddp.check_for_nan_in_loss_and_grad = false; });
  add("dp2 distributed optimizer", {.dp = 2}, distributed);
  add("dp2 distributed optimizer, overlapped", {.dp = 2}, overlapped);
  add("tp2", {.tp = 2});
  add("tp2 sp", {.tp = 2}, sequence_parallel);
  add("pp2", {.pp = 2});
  add("pp2 vpp2", {.pp = 2, .vpp = 2});
  add("cp2 ring", {.cp = 2}, communication("p2p"));
  add("cp2 all_gather", {.cp = 2}, communication("all_gather"));
  add("cp2 all-to-all", {.cp = 2}, communication("a2a"));
  add("tp2 pp2 dp2 sp, distributed optimizer", {.tp = 2, .pp = 2, .dp = 2}, [&](TrainerCase& c) {
    overlapped(c);
    sequence_parallel(c);
  });
  return all;
}

// The collectives by which ranks agree, as opposed to those that move activations, gradients and parameters.
int agreements(const ObservedStep& step) {
  int count = 0;
  for (const auto& [purpose, times] : step.messages)
    for (const char* small : {"totals of the step", "gradient norm", "validation of the step", "loss of the step"})
      if (purpose == small) count += times;
  return count;
}

TEST(HostWaits, OncePerStepInEveryDenseLayout) {
  double of_one_rank = 0;
  for (const TrainerCase& how : dense_layouts()) {
    SCOPED_TRACE(how.name);
    std::vector<double> losses(static_cast<size_t>(how.ranks()));
    run_trainer_ranks(four_layers(), how, [&](const TrainerRank& r) {
      const std::vector<ObservedStep> steps = steps_of(r, losses[static_cast<size_t>(r.rank.rank)]);
      ASSERT_EQ(steps.size(), 3u);
      for (const ObservedStep& step : steps) {
        EXPECT_EQ(step.waits, 1) << how.name << ", rank " << r.rank.rank;
        if (&step == steps.data()) continue;  // the first step connects the stages
        for (const auto& [name, count] : step.blocking)
          ADD_FAILURE() << how.name << ", rank " << r.rank.rank << ": " << name << " " << count << " times";
        EXPECT_EQ(agreements(step), r.rank.size > 1 ? 1 : 0) << how.name;
        // Per-token loss: the number to divide by must be known before the norm.
        const int counts = r.rank.size == how.tp || !how.args.ddp.calculate_per_token_loss ? 0 : 1;
        const auto tokens = step.messages.find("tokens of the step");
        EXPECT_EQ(tokens == step.messages.end() ? 0 : tokens->second, counts * ((how.pp > 1) + (how.dp * how.cp > 1)));
      }
    });
    if (how.ranks() == 1) of_one_rank = losses[0];
    if (how.dp == 1) {  // other layouts have more samples per step
      EXPECT_NEAR(losses.back(), of_one_rank, 1e-5);
    }
    for (const double loss : losses) EXPECT_EQ(loss, losses[0]) << "ranks disagree";
  }
}

// A layout of a model with experts, and how often a layer's dispatch of one micro-batch is meant to read.
struct ExpertCase {
  TrainerCase how;
  int reads = 1;
  const char* family = "qwen3_moe";
};

std::vector<ExpertCase> expert_layouts() {
  std::vector<ExpertCase> all;
  const auto add = [&](std::string name, int reads, TrainerCase how, const std::function<void(TrainerCase&)>& change,
                       const char* family = "qwen3_moe") {
    how.name = std::move(name);
    how.args.batch.micro_batch_size = 1;
    how.args.batch.gradient_accumulation_steps = 4;
    how.args.run.max_steps = 2;
    change(how);
    all.push_back({std::move(how), reads, family});
  };
  const auto nothing = [](TrainerCase&) {};
  const auto ep2 = [](TrainerCase& c) { c.args.parallel.ep = 2; };
  const auto limited = [](TrainerCase& c) { c.args.moe.expert_capacity_factor = 1; };
  const auto padded = [](TrainerCase& c) {
    c.args.moe.expert_capacity_factor = 1;
    c.args.moe.pad_expert_input_to_capacity = true;
  };
  const auto both = [](const auto& first, const auto& second) {
    return [first, second](TrainerCase& c) {
      first(c);
      second(c);
    };
  };
  const auto gathered = [](TrainerCase& c) { c.args.moe.token_dispatcher = config::TokenDispatcher::kAllGather; };
  const auto within_replica = [](TrainerCase& c) {
    c.args.parallel.ep = 2;
    c.args.parallel.etp = 1;
    c.args.parallel.sequence_parallel = true;
  };
  const auto full = [](TrainerCase& c) { c.args.recompute.granularity = config::RecomputeGranularity::kFull; };
  const auto overlapped = [](TrainerCase& c) { c.args.moe.shared_expert_overlap = true; };
  add("one rank", 0, {}, nothing);
  add("one rank, padded to capacity", 0, {}, padded);
  add("one rank, dropping", 1, {}, limited);
  add("ep2 alltoall", 1, {.dp = 2}, ep2);
  add("ep2 alltoall, dropping", 1, {.dp = 2}, both(ep2, limited));
  add("ep2 alltoall, recomputed", 1, {.dp = 2}, both(ep2, full));
  add("ep2 allgather", 1, {.dp = 2}, both(ep2, gathered));
  add("ep2 allgather, recomputed", 1, {.dp = 2}, both(ep2, both(gathered, full)));
  add("tp2 ep2 alltoall", 1, {.tp = 2}, within_replica);
  add("tp2 ep2 alltoall, padded to capacity", 0, {.tp = 2}, both(within_replica, padded));
  add("ep2, shared experts", 1, {.dp = 2}, ep2, "glm4_moe");
  add("ep2, shared experts overlapped", 1, {.dp = 2}, both(ep2, overlapped), "glm4_moe");
  add("pp2 ep2", 1, {.pp = 2, .dp = 2}, ep2);
  return all;
}

int layers_with_experts(const TrainerRank& r) {
  size_t count = 0;
  for (const auto& chunk : r.models) count += chunk->routers().size();
  return static_cast<int>(count);
}

// One wait for the totals, whatever the routers report; and what the dispatch of each layer and micro-batch reads in
// forward. Nothing in backward, and nothing else.
TEST(HostWaits, OncePerDispatchWithExperts) {
  for (const ExpertCase& each : expert_layouts()) {
    const TrainerCase& how = each.how;
    SCOPED_TRACE(how.name);
    run_trainer_ranks(golden_folder(each.family), how, [&](const TrainerRank& r) {
      double loss = 0;
      const std::vector<ObservedStep> steps = steps_of(r, loss);
      ASSERT_EQ(steps.size(), 2u);
      const int microbatches = how.args.batch.gradient_accumulation_steps;
      for (const ObservedStep& step : steps) {
        EXPECT_EQ(step.waits, 1 + each.reads * layers_with_experts(r) * microbatches)
            << how.name << ", rank " << r.rank.rank;
        if (&step == steps.data()) continue;  // the first step connects the stages
        for (const auto& [name, count] : step.blocking)
          ADD_FAILURE() << how.name << ", rank " << r.rank.rank << ": " << name << " " << count << " times";
        EXPECT_EQ(agreements(step), r.rank.size > 1 ? 1 : 0) << how.name;
        EXPECT_FALSE(step.messages.contains("load of the experts"));
        EXPECT_FALSE(step.messages.contains("routing of the step"));
      }
    });
  }
}

}  // namespace
}  // namespace megalith::testing
