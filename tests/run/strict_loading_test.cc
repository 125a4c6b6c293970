// dist_ckpt_strictness on checkpoints that lack a tensor of the run, or have one that it does not use: a head of its
// own, against embeddings that are tied to it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/run/pretrain.h"
#include "megalith/train/saving/key_check.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using Words = std::vector<std::string>;

const Words kSmall{"--num-layers=2",
                   "--hidden-size=32",
                   "--num-attention-heads=4",
                   "--seq-length=16",
                   "--vocab-size=63",
                   "--max-position-embeddings=16",
                   "--tokenizer-type=NullTokenizer",
                   "--mock-data",
                   "--position-embedding-type=rope",
                   "--normalization=RMSNorm",
                   "--swiglu",
                   "--disable-bias-linear",
                   "--hidden-dropout=0",
                   "--attention-dropout=0",
                   "--micro-batch-size=1",
                   "--global-batch-size=2",
                   "--lr=0.01",
                   "--lr-decay-style=constant",
                   "--log-interval=1",
                   "--eval-iters=0",
                   "--use-cpu",
                   "--save-interval=100",
                   "--override-opt-param-scheduler"};
const std::string kUntied = "--untie-embeddings-and-output-weights";

struct LoadOutcome {
  std::string error;  // empty if the run succeeded
  std::string log;    // lines of all ranks
  int64_t steps = 0;
};

LoadOutcome run_words(Words more, int ranks = 1) {
  Words words = kSmall;
  words.insert(words.end(), more.begin(), more.end());
  LoadOutcome outcome;
  ::testing::internal::CaptureStderr();
  run_ranks(ranks, [&](const Rank& r) {
    const auto context = run::initialize_megatron(words, {.world = &r.world});
    try {
      const run::PretrainOutput output = run::pretrain(*context);
      if (r.rank == 0) outcome.steps = output.state.global_step;
    } catch (const DataError& error) {
      if (r.rank == 0) outcome.error = error.what();
    }
  });
  outcome.log = ::testing::internal::GetCapturedStderr();
  return outcome;
}

// Two folders with a checkpoint of two steps each.
class StrictLoading : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tied_ = std::make_unique<TempFolder>();
    untied_ = std::make_unique<TempFolder>();
    ASSERT_EQ(run_words({"--train-iters=2", "--save=" + tied_->path().string()}).error, "");
    ASSERT_EQ(run_words({"--train-iters=2", "--save=" + untied_->path().string(), kUntied}).error, "");
  }
  static void TearDownTestSuite() {
    tied_.reset();
    untied_.reset();
  }
  // Loads the tied checkpoint into an untied model: the checkpoint lacks lm_head.weight.
  static LoadOutcome lacking(const std::string& strictness, Words more = {}, int ranks = 1) {
    more.insert(more.end(), {"--train-iters=3", kUntied, "--load=" + tied_->path().string()});
    more.push_back("--dist-ckpt-strictness=" + strictness);
    return run_words(more, ranks);
  }
  // Loads the untied checkpoint into a tied model, which has no use for lm_head.weight.
  static LoadOutcome unread(const std::string& strictness, Words more = {}, int ranks = 1) {
    more.insert(more.end(), {"--train-iters=3", "--load=" + untied_->path().string()});
    more.push_back("--dist-ckpt-strictness=" + strictness);
    return run_words(more, ranks);
  }

  static inline std::unique_ptr<TempFolder> tied_, untied_;
};

TEST_F(StrictLoading, TensorsThatTheCheckpointLacks) {
  for (const char* fails : {"assume_ok_unexpected", "raise_unexpected", "raise_all"}) {
    SCOPED_TRACE(fails);
    const LoadOutcome outcome = lacking(fails);
    EXPECT_NE(outcome.error.find("lacks 1 tensor of this run's weights: lm_head.weight"), std::string::npos)
        << outcome.error;
  }
  for (const char* warns : {"log_unexpected", "log_all", "return_unexpected", "return_all"}) {
    SCOPED_TRACE(warns);
    const LoadOutcome outcome = lacking(warns);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.steps, 3);
    EXPECT_NE(outcome.log.find("lacks 1 tensor of this run's weights: lm_head.weight"), std::string::npos)
        << outcome.log;
    EXPECT_NE(outcome.log.find("lacks 2 tensors of this run's optimizer state: optimizer.exp_avg.head.weight"),
              std::string::npos);
  }
  const LoadOutcome outcome = lacking("ignore_all");
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.steps, 3);
  EXPECT_EQ(outcome.log.find("lm_head"), std::string::npos) << outcome.log;
}

TEST_F(StrictLoading, TensorsThatTheRunDoesNotUse) {
  const LoadOutcome raised = unread("raise_all");
  EXPECT_NE(raised.error.find("holds 1 tensor beyond this run's weights: lm_head.weight"), std::string::npos)
      << raised.error;
  for (const char* warns : {"log_all", "return_all"}) {
    SCOPED_TRACE(warns);
    const LoadOutcome outcome = unread(warns);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.steps, 3);
    EXPECT_NE(outcome.log.find("holds 1 tensor beyond this run's weights: lm_head.weight"), std::string::npos);
    EXPECT_NE(outcome.log.find("holds 2 tensors beyond this run's optimizer state: optimizer.exp_avg.head.weight"),
              std::string::npos);
  }
  for (const char* silent :
       {"assume_ok_unexpected", "log_unexpected", "raise_unexpected", "return_unexpected", "ignore_all"}) {
    SCOPED_TRACE(silent);
    const LoadOutcome outcome = unread(silent);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.steps, 3);
    EXPECT_EQ(outcome.log.find("lm_head"), std::string::npos) << outcome.log;
  }
}

// The same in a layout in which only the last stage has the head and half of it each.
TEST_F(StrictLoading, EveryRankAgreesInOtherLayouts) {
  const Words layout{"--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2"};
  EXPECT_NE(lacking("raise_unexpected", layout, 4).error.find("lm_head.weight"), std::string::npos);
  EXPECT_NE(unread("raise_all", layout, 4).error.find("lm_head.weight"), std::string::npos);
  const LoadOutcome logged = lacking("log_all", layout, 4);
  EXPECT_EQ(logged.error, "");
  EXPECT_EQ(logged.steps, 3);
}

// Weights and state that are in both have their saved values; the head, which is not, its initial ones: a rate of 0
// then writes the same bits again.
TEST_F(StrictLoading, EverythingElseIsLoaded) {
  const TempFolder out, fresh;
  const LoadOutcome outcome = lacking("log_unexpected", {"--lr=0", "--min-lr=0", "--save=" + out.path().string()});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(run_words({"--train-iters=1", "--lr=0", "--min-lr=0", kUntied, "--save=" + fresh.path().string()}).error,
            "");
  const hf::WeightFiles before(*tied_ / "checkpoint-2"), after(out / "checkpoint-3"), initial(fresh / "checkpoint-1");
  for (const std::string& name : after.names()) {
    const hf::WeightFiles& expected = name == "lm_head.weight" ? initial : before;
    EXPECT_TRUE(at::equal(after.tensor(name), expected.tensor(name))) << name;
  }
}

// A part that is left out on purpose is not compared.
TEST_F(StrictLoading, PartsThatAreNotLoadedDoNotCount) {
  EXPECT_EQ(run_words({"--train-iters=3", "--no-load-optim", "--dist-ckpt-strictness=raise_all",
                       "--load=" + tied_->path().string()})
                .error,
            "");
}

TEST(KeyActions, ErrorsNameAFewKeysAndCountTheRest) {
  model::KeyDifference keys;
  for (int i = 0; i < 20; ++i) keys.absent.push_back("layers." + std::to_string(i) + ".bias");
  try {
    train::apply_key_actions(keys, {}, "weights", "somewhere", true);
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the checkpoint somewhere lacks 20 tensors of this run's weights: layers.0.bias"),
              std::string::npos);
    EXPECT_NE(text.find("layers.7.bias, … (20 in all)"), std::string::npos) << text;
    EXPECT_NE(text.find("dist_ckpt_strictness"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace megalith::testing
