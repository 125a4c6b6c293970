// Scoring: golden losses for every way a batch can be padded and shared.
#include "megalith/inference/score.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/hf/safetensors_file.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

inference::ScoreBatch batch_of(const GoldenModel& golden) {
  return {golden.input_ids, golden.attention_mask, golden.labels};
}

TEST(Score, FileHoldsTheGoldenNumbersInEveryLayout) {
  const GoldenModel golden = read_golden_model("qwen3");
  for (const auto& [tp, dp, cp, sp] :
       {std::tuple(1, 1, 1, false), std::tuple(2, 2, 1, true), std::tuple(4, 1, 1, true), std::tuple(1, 1, 2, false),
        std::tuple(2, 1, 4, true), std::tuple(1, 2, 2, false)}) {
    SCOPED_TRACE(fmt::format("tp {} dp {} cp {}", tp, dp, cp));
    const TempFolder temp;
    ModelCase how{.tp = tp, .dp = dp, .cp = cp};
    how.options.sequence_parallel = sp;
    run_model(golden.folder, how, [&](const Rank&, model::VirtualModels& models) {
      const auto total =
          inference::score_to_file(models, batch_of(golden), temp / "out.safetensors", {.rows = 1, .logits = true});
      expect_close(total.loss, golden.loss, "loss");
      EXPECT_EQ(total.num_label_tokens, golden.num_label_tokens);
    });
    const hf::SafetensorsFile file(temp / "out.safetensors");
    expect_close(file.tensor("token_losses"), golden.token_losses, "token losses");
    expect_close(file.tensor("logits")[0], golden.logits, "logits");
    expect_close(file.tensor("loss").item<double>(), golden.loss, "loss");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(temp.path()), {}), 1) << "something is left behind";
  }
}

// Padding on the left, or in between, and a number of tokens that tp does not divide.
TEST(Score, PaddingAnywhereChangesNothing) {
  const GoldenModel golden = read_golden_model("llama");
  const int64_t shift = 5, s = golden.input_ids.size(1);
  const auto moved = [&](const at::Tensor& t, int64_t fill) {
    return at::cat({at::full({t.size(0), shift}, fill, at::kLong), t}, 1);
  };
  const inference::ScoreBatch left{moved(golden.input_ids, 0), moved(golden.attention_mask, 0),
                                   moved(golden.labels, -100)};
  for (const auto& [tp, cp] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2), std::pair(1, 4)}) {
    ModelCase how{.tp = tp, .cp = cp};
    how.options.sequence_parallel = true;
    run_model(golden.folder, how, [&](const Rank&, model::VirtualModels& models) {
      const auto rows = inference::score_rows(models, left, false);
      expect_close(rows.token_losses.narrow(1, shift, s), golden.token_losses, "token losses");
      EXPECT_EQ(rows.token_losses.narrow(1, 0, shift).abs().sum().item<double>(), 0);
    });
  }
}

TEST(Score, WithoutLabelsEveryRealTokenCounts) {
  const GoldenModel golden = read_golden_model("llama");
  run_model(golden.folder, {}, [&](const Rank&, model::VirtualModels& models) {
    const auto rows = inference::score_rows(models, {golden.input_ids, golden.attention_mask, {}}, false);
    const at::Tensor real = golden.attention_mask.narrow(1, 1, golden.input_ids.size(1) - 1);
    EXPECT_EQ(rows.token_losses.ne(0).sum().item<int64_t>(), real.sum().item<int64_t>());
  });
}

}  // namespace
}  // namespace megalith::testing
