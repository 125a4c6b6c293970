// Runs that train adapters on multi-token-prediction layers: the same losses in every layout, of both kinds.
#include <gtest/gtest.h>

#include <array>

#include "tests/model/mtp_base.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

struct Losses {
  std::vector<double> main, ahead;
};

Losses losses_of(const std::filesystem::path& folder, TrainerCase how) {
  how.args.run.finetuning_type = config::FinetuningType::kLora;
  how.args.run.max_steps = 4;
  how.args.lora.rank = 4;
  how.args.optimizer.learning_rate = 5e-3;
  how.args.shape.mtp_loss_scaling_factor = 0.3;
  how.args.parallel.sequence_parallel = how.tp > 1;
  how.args.batch.gradient_accumulation_steps = how.pp;
  how.args.batch.micro_batch_size = 8 / how.dp / how.pp;
  const RunLog run = run_training(folder, how, random_sequences(32, 60, 1), random_sequences(8, 60, 2));
  return {run.numbers("loss"), run.numbers("mtp_1_loss")};
}

TEST(MtpAdapterRun, EveryLayoutTrainsAsOneRank) {
  for (const auto& [name, key] :
       {std::pair("glm4_moe", "num_nextn_predict_layers"), std::pair("qwen3_5_text", "mtp_num_hidden_layers")}) {
    const TempFolder temp;
    write_mtp_model(name, key, 1, temp / "base");
    const Losses expected = losses_of(temp / "base", {.name = name});
    ASSERT_EQ(expected.ahead.size(), 4U);
    EXPECT_LT(expected.ahead.back(), expected.ahead.front());
    for (const auto& [tp, pp, dp] : {std::array{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}}) {
      TrainerCase how{.name = fmt::format("{} tp {} pp {} dp {}", name, tp, pp, dp), .tp = tp, .pp = pp, .dp = dp};
      if (dp > 1 && std::string_view(name) == "glm4_moe") how.args.parallel.ep = 2;
      const Losses actual = losses_of(temp / "base", how);
      for (size_t i = 0; i < expected.main.size(); ++i) {
        expect_close(actual.main[i], expected.main[i], fmt::format("{}, loss {}", how.name, i), 1e-4);
        expect_close(actual.ahead[i], expected.ahead[i], fmt::format("{}, loss ahead {}", how.name, i), 1e-4);
      }
    }
  }
}

// A target that only the prediction layers have trains these alone.
TEST(MtpAdapterRun, TrainsThemAlone) {
  const TempFolder temp;
  write_mtp_model("glm4_moe", "num_nextn_predict_layers", 1, temp / "base");
  TrainerCase how;
  how.args.lora.target = {"eh_proj"};
  const Losses losses = losses_of(temp / "base", how);
  EXPECT_LT(losses.ahead.back(), losses.ahead.front());
}

}  // namespace
}  // namespace megalith::testing
