// Training and evaluation over context-parallel ranks are those of one rank.
#include <gtest/gtest.h>

#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/step/rank_microbatches.h"
#include "tests/support/close.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

constexpr int kSteps = 20;

// SGD: it does not magnify the rounding of small gradients.
TrainerCase sgd_case(const std::string& name) {
  TrainerCase c;
  c.name = name;
  c.args.run.max_steps = kSteps;
  c.args.optimizer.optimizer = config::OptimizerKind::kSgd;
  c.args.optimizer.optim = config::HfOptimizer::kSgd;
  c.args.optimizer.learning_rate = 0.01;
  return c;
}

// All have 8 samples per step.
std::vector<TrainerCase> context_layouts() {
  std::vector<TrainerCase> all;
  const auto add = [&](const std::string& name, int cp, int tp, int pp, int dp, int accumulation,
                       const std::function<void(TrainerCase&)>& change = {}) {
    TrainerCase c = sgd_case(name);
    c.cp = cp, c.tp = tp, c.pp = pp, c.dp = dp;
    c.args.batch.gradient_accumulation_steps = accumulation;
    c.args.batch.micro_batch_size = 8 / dp / accumulation;
    c.args.parallel.sequence_parallel = tp > 1;
    if (change) change(c);
    all.push_back(c);
  };
  const auto packed = [](TrainerCase& c) { c.collator.padding = data::Padding::kNone; };
  const auto overlapped = [](TrainerCase& c) {
    c.args.optimizer.use_distributed_optimizer = true;
    c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
    c.args.ddp.bucket_size = 5000;
  };
  const auto way = [](const char* name) { return [name](TrainerCase& c) { c.args.parallel.cp_comm_type = {name}; }; };
  add("cp 2", 2, 1, 1, 1, 2);
  add("cp 4 packed", 4, 1, 1, 1, 2, packed);
  add("cp 2 tp sp", 2, 2, 1, 1, 2);
  add("cp 2 pp", 2, 1, 2, 1, 4);
  add("cp 2 vpp packed", 2, 1, 2, 1, 4, [&](TrainerCase& c) {
    c.vpp = 2;
    packed(c);
  });
  add("cp 2 dp, distributed optimizer", 2, 1, 1, 2, 2, overlapped);
  add("cp 2 tp sp pp dp packed, distributed optimizer", 2, 2, 2, 2, 2, [&](TrainerCase& c) {
    overlapped(c);
    packed(c);
  });
  add("cp 2 pp, full recompute", 2, 1, 2, 1, 4,
      [](TrainerCase& c) { c.args.recompute.granularity = config::RecomputeGranularity::kFull; });
  add("all_gather", 4, 1, 1, 1, 1, way("all_gather"));
  add("a2a tp sp", 2, 2, 1, 1, 1, way("a2a"));
  add("a2a+p2p packed", 4, 1, 1, 1, 2, [&](TrainerCase& c) {
    c.args.parallel.cp_comm_type = {"a2a+p2p"};
    c.args.parallel.hierarchical_cp_sizes = {2, 2};
    packed(c);
  });
  return all;
}

void expect_same_context_run(const RunLog& run, const RunLog& expected, const std::string& name) {
  SCOPED_TRACE(name);
  for (const auto& [key, tolerance] : {std::pair("loss", kClose), std::pair("grad_norm", 5e-5)}) {
    const std::vector<double> actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), tolerance);
  }
  expect_close(*run.evaluation.find("eval_loss"), *expected.evaluation.find("eval_loss"), "eval_loss");
  expect_close(*run.evaluation.find("eval_token_accuracy"), *expected.evaluation.find("eval_token_accuracy"),
               "accuracy");
}

class ContextParallelTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(ContextParallelTraining, IsThatOfOneRank) {
  const auto folder = golden_folder(GetParam());
  const int64_t vocab = model::read_model_config(folder).vocab_size;
  const auto train = random_sequences(20, vocab), eval = random_sequences(5, vocab, 3);
  const RunLog alone = run_training(folder, sgd_case("one rank"), train, eval);
  ASSERT_EQ(alone.numbers("loss").size(), kSteps);
  for (const TrainerCase& layout : context_layouts()) {
    expect_same_context_run(run_training(folder, layout, train, eval), alone, layout.name);
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ContextParallelTraining, ::testing::Values("llama", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

// Each micro-batch's mean counts the same: its tokens are those of all context-parallel ranks, counted once.
TEST(ContextParallelLoss, PerMicrobatchIsThatOfOneRank) {
  const auto folder = golden_folder("mistral");
  const auto samples = random_sequences(20, model::read_model_config(folder).vocab_size);
  TrainerCase alone = sgd_case("one rank");
  alone.args.ddp.calculate_per_token_loss = false;
  alone.args.batch.micro_batch_size = 2;
  alone.args.batch.gradient_accumulation_steps = 4;
  TrainerCase spread = alone;
  spread.name = "cp 2 dp 2";
  spread.cp = spread.dp = 2;
  spread.args.batch.gradient_accumulation_steps = 2;
  expect_same_context_run(run_training(folder, spread, samples, samples), run_training(folder, alone, samples, samples),
                          "cp dp");
}

TEST(ContextParallelLoss, Bf16ComesClose) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(20, 512);
  TrainerCase how;  // AdamW: its steps do not grow with the rounding of gradients
  const auto expected = run_training(folder, how, samples, samples).numbers("loss");
  how.cp = 4;
  how.args.precision.bf16 = true;
  const auto actual = run_training(folder, how, samples, samples).numbers("loss");
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) expect_close(actual[i], expected[i], fmt::format("loss {}", i), 1e-2);
}

// Dropout inside attention over several ranks is not offered, and the run says so.
TEST(ContextParallelLoss, AttentionDropoutIsRefused) {
  const auto folder = golden_folder("llama");
  TrainerCase how = sgd_case("dropout");
  how.cp = 2;
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    model::ModelConfig config = r.models.config();
    config.attention_dropout = 0.1;
    model::VirtualModels models(config, r.models[0].options(), {model::ChunkPlace::whole(config)}, r.models.context());
    models.initialize_parameters(1);
    train::Trainer trainer(models, run::trainer_settings(r.args, models.context().grid().shape()),
                           r.setup(dataset_of(random_sequences(8, 512))));
    try {
      trainer.train();
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("attention_dropout is 0.1"), std::string::npos) << error.what();
    }
  });
}

// The row of the tower's output belongs to its token, whichever rank has it; images belong to the whole.
TEST(ContextParallelSlices, VisualRowsFollowTheirTokens) {
  data::MicroBatch batch;
  batch.layout = ops::SequenceLayout::packed({16, 8, 8});
  batch.ids = at::arange(100, 132, at::kLong);
  batch.visual_rows = batch.ids - 110;
  batch.grids = at::ones({2, 3}, at::kLong);
  batch.pixels = at::ones({8, 6});
  for (const int cp : {1, 2, 4})
    for (int rank = 0; rank < cp; ++rank) {
      const data::MicroBatch own = train::rank_microbatches({&batch, 1}, {.cp_rank = rank, .cp = cp}).at(0);
      ASSERT_EQ(own.visual_rows.size(0), 32 / cp);
      EXPECT_TRUE(at::equal(own.visual_rows, own.ids - 110));
      EXPECT_TRUE(at::equal(own.grids, batch.grids));
      EXPECT_TRUE(at::equal(own.pixels, batch.pixels));
    }
}

}  // namespace
}  // namespace megalith::testing
