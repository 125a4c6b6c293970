// Training with a vocabulary that grows: the same run in every layout, with tied and untied heads, in full and with an
// adapter. Samples use the new ids.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/hf/weight_files.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "tests/support/close.h"
#include "tests/train/same_run.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

constexpr int64_t kRows = 576;  // 512 in the files of llama, 256 in the others

// Rows 500 and 510 are in the files of llama, in reserve.
TrainerCase grown(std::string name, int tp = 1, int pp = 1, int dp = 1) {
  TrainerCase how{.name = std::move(name), .tp = tp, .pp = pp, .dp = dp};
  how.args.batch.micro_batch_size = 8 / dp / (pp > 1 ? 2 : 1);
  how.args.batch.gradient_accumulation_steps = pp > 1 ? 2 : 1;
  how.vocab_size = kRows;
  how.new_tokens = {500, 510, 512, 513, 514};
  return how;
}

std::vector<TrainerCase> grown_layouts() {
  std::vector<TrainerCase> all{grown("tp", 2), grown("pp", 1, 2), grown("dp, distributed optimizer", 1, 1, 2),
                               grown("tp sp, pp, dp, distributed optimizer", 2, 2, 2)};
  // Padding to a multiple of 7·tp leaves rows without a token on the last rank.
  all[0].args.shape.make_vocab_size_divisible_by = 7;
  for (TrainerCase& how : all) how.args.optimizer.use_distributed_optimizer = how.dp > 1;
  all[3].args.parallel.sequence_parallel = true;
  return all;
}

// Runs one rank and all layouts; `change` sets what they have in common. Returns the log of the one rank.
RunLog expect_same_in_layouts(const char* family, const std::function<void(TrainerCase&)>& change) {
  const auto folder = golden_folder(family);
  const auto train = random_sequences(20, kRows), eval = random_sequences(5, kRows, 3);
  TrainerCase alone = grown("one rank");
  change(alone);
  const RunLog expected = run_training(folder, alone, train, eval);
  EXPECT_EQ(expected.numbers("loss").size(), 4U);
  for (TrainerCase& how : grown_layouts()) {
    change(how);
    expect_same_run(run_training(folder, how, train, eval), expected, how.name);
  }
  return expected;
}

class GrownVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(GrownVocabulary, TrainsTheSameInEveryLayout) {
  expect_same_in_layouts(GetParam(), [](TrainerCase&) {});
}

// With the embedding trained in full, and frozen.
TEST_P(GrownVocabulary, TrainsTheSameAdapterInEveryLayout) {
  const auto modules = model::vocabulary_modules(model::read_model_config(golden_folder(GetParam())));
  const auto adapter = [](TrainerCase& how) {
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.lora.rank = 4;
  };
  const RunLog trained = expect_same_in_layouts(GetParam(), [&](TrainerCase& how) {
    adapter(how);
    how.args.lora.additional_target = modules;
  });
  const RunLog frozen = expect_same_in_layouts(GetParam(), adapter);
  EXPECT_EQ(trained.numbers("loss")[0], frozen.numbers("loss")[0]);
  EXPECT_LT(trained.numbers("loss")[3], frozen.numbers("loss")[3]);
}

// gpt2 and qwen2 are tied.
INSTANTIATE_TEST_SUITE_P(Models, GrownVocabulary, ::testing::Values("llama", "qwen2", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

// The rows of added tokens are new even where the files have some; no other row of the files changes, and the mean
// leaves them out.
TEST(GrownRows, OfAddedTokensAreNew) {
  const auto folder = golden_folder("llama");
  run_trainer_ranks(folder, grown("one rank"), [&](const TrainerRank& r) {
    const at::Tensor old = hf::WeightFiles(folder).tensor("model.embed_tokens.weight");
    for (const nn::Parameter* parameter : r.models.parameters()) {
      if (parameter->spec.name != "embedding.weight") continue;
      const at::Tensor now = parameter->value.detach();
      at::Tensor others = at::ones({512}, at::kBool);
      others[500] = others[510] = false;
      EXPECT_TRUE(now.narrow(0, 0, 512).index({others}).equal(old.index({others})));
      const at::Tensor mean = old.index({others}).to(at::kDouble).mean(0);
      const at::Tensor fresh =
          at::cat({now.narrow(0, 500, 1), now.narrow(0, 510, 1), now.narrow(0, 512, 64)}).to(at::kDouble);
      EXPECT_NEAR((fresh - mean).std().item<double>(), 1.0 / 8, 0.01);  // N(0, 1/√64)
      EXPECT_LT((fresh - mean).mean().abs().item<double>(), 0.01);
    }
  });
}

}  // namespace
}  // namespace megalith::testing
