// Muon through the Trainer: the same run in every layout, and checkpoints that another layout continues.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/state_files.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"
#include "tests/train/same_run.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using config::MuonTpMode;

// Products in fp32, so that layouts may be compared; steps about as large as AdamW's.
void with_muon(config::TrainingArguments& args, MuonTpMode mode) {
  args.optimizer.optimizer = config::OptimizerKind::kMuon;
  args.muon.extra_scale_factor = 0.2;
  args.muon.nesterov = true;
  args.muon.fp32_matmul_prec = "high";
  args.muon.tp_mode = mode;
}

struct Sizes {
  int tp = 1, pp = 1, dp = 1, ep = 1;
  std::optional<int> etp{};
  std::optional<int> vpp{};
};

// 8 samples per step.
TrainerCase layout(const Sizes& sizes, MuonTpMode mode, bool distributed = true) {
  TrainerCase c;
  c.name = fmt::format("tp {} pp {} dp {} ep {} etp {} vpp {}{}", sizes.tp, sizes.pp, sizes.dp, sizes.ep,
                       sizes.etp.value_or(sizes.tp), sizes.vpp.value_or(1), distributed ? " distributed" : "");
  c.tp = sizes.tp, c.pp = sizes.pp, c.dp = sizes.dp, c.vpp = sizes.vpp;
  c.args.parallel.ep = sizes.ep;
  c.args.parallel.etp = sizes.etp;
  c.args.parallel.sequence_parallel = sizes.tp > 1;
  c.args.optimizer.use_distributed_optimizer = distributed;
  c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = distributed;
  c.args.ddp.bucket_size = 5000;
  c.args.batch.gradient_accumulation_steps = sizes.pp > 1 ? 4 / sizes.dp * 2 : 1;
  c.args.batch.micro_batch_size = 8 / sizes.dp / c.args.batch.gradient_accumulation_steps;
  with_muon(c.args, mode);
  return c;
}

std::string mode_name(const ::testing::TestParamInfo<MuonTpMode>& test) {
  return std::string(config::choice_name(test.param));
}

class MuonTraining : public ::testing::TestWithParam<MuonTpMode> {};

// Blocks of tp ranks are matrices of their own only in blockwise mode.
TEST_P(MuonTraining, IsTheSameInEveryLayout) {
  const auto folder = golden_folder("llama");
  const auto train = random_sequences(20, 512), eval = random_sequences(5, 512, 3);
  const RunLog alone = run_training(folder, layout({}, GetParam(), false), train, eval);
  ASSERT_EQ(alone.numbers("loss").size(), 4);
  EXPECT_NE(alone.numbers("loss"), run_training(folder, {}, train, eval).numbers("loss")) << "AdamW is another";
  for (const Sizes& sizes : {Sizes{.pp = 2},
                             {.dp = 2},
                             {.pp = 2, .dp = 2, .vpp = 2},
                             {.tp = 2},
                             {.tp = 2, .dp = 2},
                             {.tp = 2, .pp = 2, .dp = 2}}) {
    if (sizes.tp > 1 && GetParam() == MuonTpMode::kBlockwise) continue;
    const TrainerCase how = layout(sizes, GetParam());
    expect_same_run(run_training(folder, how, train, eval), alone, how.name);
  }
}

// Each expert is a matrix of its own, wherever it is kept.
TEST_P(MuonTraining, OfExpertsIsTheSameInEveryLayout) {
  const auto folder = golden_folder("qwen3_moe");
  const int64_t vocab = model::read_model_config(folder).vocab_size;
  const auto train = random_sequences(20, vocab), eval = random_sequences(5, vocab, 3);
  const RunLog alone = run_training(folder, layout({}, GetParam(), false), train, eval);
  for (const Sizes& sizes : {Sizes{.dp = 2, .ep = 2},
                             {.dp = 4, .ep = 2},
                             {.pp = 2, .dp = 2, .ep = 2},
                             {.tp = 2, .ep = 2, .etp = 1},
                             {.tp = 2, .dp = 2, .ep = 2, .etp = 2}}) {
    if (sizes.tp > 1 && GetParam() == MuonTpMode::kBlockwise) continue;
    const TrainerCase how = layout(sizes, GetParam());
    SCOPED_TRACE(how.name);
    const RunLog run = run_training(folder, how, train, eval);
    const auto actual = run.numbers("loss"), right = alone.numbers("loss");
    ASSERT_EQ(actual.size(), right.size());
    // AdamW, for what is not a matrix, magnifies rounding.
    for (size_t i = 0; i < right.size(); ++i) expect_close(actual[i], right[i], fmt::format("loss {}", i), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, MuonTraining,
                         ::testing::Values(MuonTpMode::kBlockwise, MuonTpMode::kDuplicated, MuonTpMode::kDistributed),
                         mode_name);

TrainerCase resumable(const Sizes& sizes, const fs::path& out) {
  TrainerCase how = layout(sizes, MuonTpMode::kDuplicated, sizes.dp > 1);
  const config::TrainingArguments sized = how.args;
  how.args = resume_arguments(out, 6, 3);
  how.args.parallel = sized.parallel;
  how.args.optimizer.use_distributed_optimizer = sized.optimizer.use_distributed_optimizer;
  how.args.batch.micro_batch_size = sized.batch.micro_batch_size;
  how.args.batch.gradient_accumulation_steps = sized.batch.gradient_accumulation_steps;
  with_muon(how.args, MuonTpMode::kDuplicated);
  return how;
}

std::vector<double> losses_of(const train::TrainerState& state) {
  std::vector<double> found;
  for (const train::MetricList& line : state.log_history)
    if (const auto value = line.find("loss")) found.push_back(*value);
  return found;
}

TEST(MuonCheckpoints, AreContinuedInEveryLayout) {
  const std::vector<Sizes> layouts{{}, {.dp = 4}, {.tp = 2, .dp = 2}, {.tp = 2, .pp = 2}};
  for (const Sizes& from : {layouts[0], layouts[2]}) {
    const TempFolder out;
    const std::vector<double> expected = losses_of(run_resumable(resumable(from, out.path()), {}));
    ASSERT_EQ(expected.size(), 6U);
    const fs::path saved = out / "checkpoint-3";
    // Matrices have no second moment.
    std::set<std::string> names;
    for (const auto& tensor : checkpoint::StateFiles(saved, checkpoint::read_manifest(saved), "optimizer").tensors())
      names.insert(tensor.name);
    EXPECT_TRUE(names.contains("optimizer.exp_avg.layers.1.mlp.gate.weight"));
    EXPECT_FALSE(names.contains("optimizer.exp_avg_sq.layers.1.mlp.gate.weight"));
    EXPECT_TRUE(names.contains("optimizer.exp_avg_sq.embedding.weight"));
    for (const Sizes& to : layouts) {
      const TempFolder rest;
      const TrainerCase how = resumable(to, rest.path());
      const std::vector<double> losses = losses_of(run_resumable(how, {.checkpoint = saved}));
      ASSERT_EQ(losses.size(), expected.size());
      for (size_t i = 0; i < losses.size(); ++i)
        expect_close(losses[i], expected[i], fmt::format("{}: loss {}", how.name, i), i < 4 ? kClose : 1e-4);
    }
  }
}

}  // namespace
}  // namespace megalith::testing
