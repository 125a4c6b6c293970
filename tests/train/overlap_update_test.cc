// Trainings whose later layers are updated beside the next forward pass: on the CPU, with a queue that runs an update
// only when somebody waits for it. Every number must be that of a run that updates at once.
#include "megalith/train/step/overlap_update.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/optim/deferred_queue.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// The results of a run on its first rank.
struct Outcome {
  std::vector<train::MetricList> lines;
  std::map<std::string, at::Tensor> weights;
  QueueLog log;
};

struct HowToRun {
  bool overlaps = true;
  bool allowed = true;  // TrainerSetup::updates_may_overlap
  std::function<void(train::Trainer&)> ended{};
  // Takes the waits away.
  bool forgets = false;
};

// Calls a function at the begin of every step.
class AtStep : public train::TrainerCallback {
 public:
  explicit AtStep(std::function<void()> body) : body_(std::move(body)) {}
  void on_step_begin(train::TrainerEvent&) override { body_(); }

 private:
  std::function<void()> body_;
};

Outcome run_case(const std::string& model, const TrainerCase& how, const HowToRun& run) {
  Outcome outcome;
  run_trainer_ranks(golden_folder(model), how, [&](const TrainerRank& r) {
    train::TrainerSettings settings = r.settings();
    QueueLog log;
    settings.update.overlap.enabled = run.overlaps;
    settings.update.overlap.overlap = optim::OverlapSettings::always();
    settings.update.overlap.make_queue = [&](c10::Device, TraceRecorder*) {
      return std::make_unique<DeferredQueue>(log);
    };
    train::TrainerSetup setup =
        r.setup(dataset_of(random_sequences(20, 200)), dataset_of(random_sequences(5, 200, /*seed=*/3)));
    setup.updates_may_overlap = run.allowed;
    Recorder::Heard heard;
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    if (run.forgets) setup.callbacks.push_back(std::make_unique<AtStep>([&] { r.models[0].set_before_part(nullptr); }));
    train::Trainer trainer(r.models, settings, std::move(setup));
    trainer.train();
    if (run.ended) run.ended(trainer);
    if (r.rank.rank != 0) return;
    outcome.lines = heard.lines;
    outcome.log = log;
    for (const nn::Parameter* parameter : r.models.parameters())
      outcome.weights[parameter->spec.name] = parameter->value.detach().clone();
  });
  return outcome;
}

// All that a line says but how long it took.
std::vector<std::map<std::string, double>> numbers_of(const Outcome& outcome) {
  std::vector<std::map<std::string, double>> all;
  for (const train::MetricList& line : outcome.lines) {
    auto& numbers = all.emplace_back();
    for (const char* name : {"loss", "grad_norm", "learning_rate", "params_norm", "eval_loss", "load_balancing_loss"})
      if (const auto value = line.find(name)) numbers[name] = *value;
  }
  return all;
}

void expect_same_outcome(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(numbers_of(actual), numbers_of(expected));
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [name, tensor] : expected.weights) EXPECT_TRUE(actual.weights.at(name).equal(tensor)) << name;
}

TrainerCase with(const std::function<void(TrainerCase&)>& change = {}) {
  TrainerCase how;
  how.args.run.max_steps = 6;
  if (change) change(how);
  return how;
}

class OverlapUpdate : public ::testing::TestWithParam<const char*> {};

TEST_P(OverlapUpdate, ChangesNoNumber) {
  const std::vector<TrainerCase> cases{
      with([](TrainerCase& c) {
        c.name = "evaluation and norm of the parameters in the middle";
        c.args.eval.strategy = config::Interval::kSteps;
        c.args.eval.steps = 2;
        c.args.logging.log_params_norm = true;
      }),
      with([](TrainerCase& c) {
        c.name = "micro-batches";
        c.args.batch.micro_batch_size = 2;
        c.args.batch.gradient_accumulation_steps = 4;
      }),
      with([](TrainerCase& c) {
        c.name = "state in two bytes";
        c.args.precision.bf16 = true;
        c.args.optimizer.use_precision_aware_optimizer = true;
        c.args.optimizer.exp_avg_dtype = c.args.optimizer.exp_avg_sq_dtype = "bf16";
      }),
      with([](TrainerCase& c) {
        c.name = "replicas, compared in every second step";
        c.dp = 2;
        c.args.batch.micro_batch_size = 4;
        c.args.ddp.overlap_grad_reduce = true;
        c.args.fault.check_weight_hash_interval = 2;
      }),
      with([](TrainerCase& c) {
        c.name = "recomputed layers";
        c.args.recompute.granularity = config::RecomputeGranularity::kFull;
      }),
      with([](TrainerCase& c) {
        c.name = "the distributed optimizer on one rank";
        c.args.optimizer.use_distributed_optimizer = true;
      }),
  };
  for (const TrainerCase& how : cases) {
    SCOPED_TRACE(how.name);
    const Outcome expected = run_case(GetParam(), how, {.overlaps = false}), actual = run_case(GetParam(), how, {});
    expect_same_outcome(actual, expected);
    EXPECT_EQ(expected.log.lists, 0);
    EXPECT_EQ(actual.log.lists, 6);
    EXPECT_EQ(actual.log.ran.size() % 6, 0U);
  }
}

// Gradients are overwritten by the next step, and parameters are read before they are updated.
TEST_P(OverlapUpdate, AMissingWaitIsNoticed) {
  const TrainerCase how = with();
  const auto expected = numbers_of(run_case(GetParam(), how, {.overlaps = false}));
  const auto actual = numbers_of(run_case(GetParam(), how, {.forgets = true}));
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_EQ(actual[0].at("loss"), expected[0].at("loss"));
  for (size_t i = 1; i < 6; ++i) EXPECT_NE(actual[i].at("loss"), expected[i].at("loss")) << i;
}

INSTANTIATE_TEST_SUITE_P(Of, OverlapUpdate, ::testing::Values("llama", "gpt2", "qwen3_moe"),
                         [](const auto& test) { return std::string(test.param); });

// Between steps, with nothing that waits but the save itself; and a run that continues from there.
TEST(OverlapUpdateSaves, HoldTheUpdatedState) {
  const TempFolder at_once, overlapped;
  const auto run = [&](const TempFolder& out, bool overlaps) {
    TrainerCase how;
    how.args = resume_arguments(out.path(), 4, 2);
    return run_case("llama", how, {.overlaps = overlaps});
  };
  expect_same_outcome(run(overlapped, true), run(at_once, false));
  for (const char* name : {"checkpoint-2", "checkpoint-4"})
    expect_same_tensors(overlapped / name, at_once / name, /*with_rng=*/true);
}

TEST(OverlapUpdateUse, OnlyWhereNobodyElseReadsParameters) {
  const Outcome mine = run_case("llama", with(), {.allowed = false});
  EXPECT_EQ(mine.log.lists, 0);
  expect_same_outcome(mine, run_case("llama", with(), {.overlaps = false}));
  // Stages, and shards that are gathered when all of them are updated.
  for (const TrainerCase& how : {with([](TrainerCase& c) {
                                   c.pp = 2;
                                   c.args.batch.gradient_accumulation_steps = 2;
                                 }),
                                 with([](TrainerCase& c) {
                                   c.dp = 2;
                                   c.args.optimizer.use_distributed_optimizer = true;
                                 })})
    EXPECT_EQ(run_case("llama", how, {}).log.lists, 0);
}

// The CPU has no streams.
TEST(OverlapUpdateUse, NotOnTheCpu) {
  EXPECT_EQ(optim::make_side_queue(at::kCPU, nullptr), nullptr);
  const TrainerCase how = with([](TrainerCase& c) { c.args.optimizer.overlap_with_forward = true; });
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    const train::TrainerSettings settings = r.settings();
    EXPECT_TRUE(settings.update.overlap.enabled);
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 200)));
    setup.updates_may_overlap = true;
    train::Trainer trainer(r.models, settings, std::move(setup));
    trainer.train();
    EXPECT_EQ(trainer.optimized_model()->optimizer().overlapped_update(), nullptr);
  });
}

TEST(OverlapUpdateUse, OptionsDecide) {
  const auto enabled = [&](const std::function<void(TrainerCase&)>& change) {
    return run::trainer_settings(with(change).effective(), {.world_size = 1}).update.overlap.enabled;
  };
  EXPECT_FALSE(enabled({}));
  EXPECT_TRUE(enabled([](TrainerCase& c) { c.args.optimizer.overlap_with_forward = true; }));
  EXPECT_FALSE(enabled([](TrainerCase& c) {
    c.args.optimizer.overlap_with_forward = true;
    c.args.seeds.full_determinism = true;
  }));
}

// An exception leaves parameters that may be read.
TEST(OverlapUpdateUse, AFailedRunIsUpdatedWhole) {
  struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  std::map<std::string, at::Tensor> weights[2];
  for (const bool overlaps : {false, true})
    run_trainer_ranks(golden_folder("llama"), with(), [&](const TrainerRank& r) {
      train::TrainerSettings settings = r.settings();
      QueueLog log;
      settings.update.overlap = {
          .enabled = overlaps,
          .overlap = optim::OverlapSettings::always(),
          .make_queue = [&](c10::Device, TraceRecorder*) { return std::make_unique<DeferredQueue>(log); }};
      train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 200)));
      setup.updates_may_overlap = true;
      int steps = 0;
      setup.callbacks.push_back(std::make_unique<AtStep>([&] {
        if (++steps == 3) throw Failure("stop");
      }));
      train::Trainer trainer(r.models, settings, std::move(setup));
      EXPECT_THROW(trainer.train(), Failure);
      for (const nn::Parameter* parameter : r.models.parameters())
        weights[overlaps ? 1 : 0][parameter->spec.name] = parameter->value.detach().clone();
    });
  for (const auto& [name, tensor] : weights[0]) EXPECT_TRUE(weights[1].at(name).equal(tensor)) << name;
}

TEST(ForwardParts, CountWhatProductsMultiply) {
  run_trainer_ranks(golden_folder("qwen3_moe"), with(), [&](const TrainerRank& r) {
    const model::GptModel& chunk = r.models[0];
    const auto parts = train::forward_parts(chunk);
    ASSERT_EQ(parts.size(), static_cast<size_t>(chunk.config().num_layers) + 2);
    EXPECT_EQ(parts.front().flops_per_token, 0);
    const double share =
        static_cast<double>(chunk.config().moe->router.topk) / static_cast<double>(chunk.config().moe->router.experts);
    double expected = 0;
    for (const nn::Parameter* parameter : parts[1].parameters) {
      const double all = 2 * static_cast<double>(parameter->value.numel());
      if (parameter->value.dim() >= 2) expected += parameter->spec.expert ? share * all : all;
    }
    EXPECT_DOUBLE_EQ(parts[1].flops_per_token, expected);
  });
  run_trainer_ranks(golden_folder("gpt2"), with(), [&](const TrainerRank& r) {
    const auto parts = train::forward_parts(r.models[0]);
    const nn::Parameter* embedding = r.models[0].parameters().find("embedding.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(parts.back().flops_per_token, 2 * static_cast<double>(embedding->value.numel()));  // tied
  });
}

}  // namespace
}  // namespace megalith::testing
