// State of a model whose vocabulary has grown since it was saved: old rows come back in every layout and format, new
// ones start from zero, and other tensors must have their shapes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/model/convert/convert.h"
#include "megalith/optim/optimizer.h"
#include "tests/model/model_support.h"
#include "tests/optim/memory_source.h"
#include "tests/optim/train_case.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

constexpr int64_t kOldRows = 512, kGrownRows = 576;

TrainCase sharded_case(int tp, int dp, at::ScalarType dtype) {
  TrainCase how{.tp = tp, .dp = dp};
  how.ddp.use_distributed_optimizer = dp > 1;
  how.options.dtype = dtype;
  return how;
}

class GrownState : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(GrownState, OldRowsComeBackAndNewOnesAreZero) {
  const auto folder = golden_folder("llama");
  const TempFolder temp;
  model::convert_checkpoint(folder, temp / "grown", {.vocab_size = kGrownRows});
  MemorySource saved;
  std::string progress;
  run_training_ranks(folder, sharded_case(1, 2, GetParam()), [&](const Rank& rank, TrainingRank& t) {
    const TrainBatch batch = random_batch(2, 16, kOldRows);
    for (int i = 0; i < 2; ++i) t.accumulate(batch), t.step();
    saved.save(t.optimizer().sharded_state());
    if (rank.rank == 0) progress = t.optimizer().progress_json();
  });
  for (const auto& [tp, dp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} dp {}", tp, dp));
    MemorySource loaded;
    run_training_ranks(temp / "grown", sharded_case(tp, dp, GetParam()), [&](const Rank&, TrainingRank& t) {
      t.optimizer().load_state(saved, progress, {.grown = {"embedding.weight", "head.weight"}});
      EXPECT_EQ(t.optimizer().steps(), 2);
      loaded.save(t.optimizer().sharded_state());
    });
    for (const auto& [name, before] : saved.whole()) {
      const at::Tensor now = loaded.whole().at(name);
      EXPECT_TRUE(now.narrow(0, 0, before.size(0)).equal(before)) << name;
      const int64_t added = now.size(0) - before.size(0);
      const bool grows = name.ends_with("embedding.weight") || name.ends_with("head.weight");
      EXPECT_EQ(added, grows ? kGrownRows - kOldRows : 0) << name;
      // Main parameters are those of the model.
      if (added > 0) {
        EXPECT_EQ(now.narrow(0, before.size(0), added).abs().max().item<double>() == 0,
                  !name.starts_with("optimizer.main."))
            << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GrownState, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST(GrownStateOf, TensorsThatAreNotNamedIsRefused) {
  const auto folder = golden_folder("llama");
  const TempFolder temp;
  model::convert_checkpoint(folder, temp / "grown", {.vocab_size = kGrownRows});
  MemorySource saved;
  run_training_ranks(folder, {}, [&](const Rank&, TrainingRank& t) { saved.save(t.optimizer().sharded_state()); });
  run_training_ranks(temp / "grown", {}, [&](const Rank&, TrainingRank& t) {
    try {
      t.optimizer().load_state(saved, t.optimizer().progress_json(), {.grown = {"head.weight"}});
      ADD_FAILURE() << "loaded";
    } catch (const DataError& error) {
      expect_contains(error.what(),
                      "optimizer.exp_avg.embedding.weight is [512, 64] there and [576, 64] in this model");
      EXPECT_EQ(std::string(error.what()).find("head.weight"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace megalith::testing
