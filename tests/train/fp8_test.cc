// Runs in fp8: what must differ from a run without it does, and layouts agree. Weights and activations around the
// products are in fp32, so that nothing else rounds.
#include <cmath>

#include "tests/support/expect.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using Losses = std::vector<double>;

// Three steps of AdamW on rows of any length; the collator pads them to a multiple of two, not of sixteen.
TrainerCase fp8_case(const std::string& recipe, bool lora) {
  TrainerCase how;
  how.args.run.max_steps = 3;
  how.args.batch.micro_batch_size = 3;
  how.args.optimizer.learning_rate = 1e-3;
  how.collator.length_multiple = 2;
  if (lora) how.args.run.finetuning_type = config::FinetuningType::kLora;
  if (recipe.empty()) return how;
  how.args.precision.fp8 = config::Fp8Format::kHybrid;
  how.args.precision.fp8_recipe = recipe;
  return how;
}

Losses losses_of(const TrainerCase& how, const std::string& model = "llama") {
  const auto rows = random_sequences(24, 50, 1);
  const RunLog log = run_training(golden_folder(model), how, rows, rows);
  Losses losses = log.numbers("loss");
  losses.push_back(log.evaluation.find("eval_loss").value_or(NAN));
  return losses;
}

// The largest difference, relative to the loss.
double distance(const Losses& a, const Losses& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]) / b[i]);
  return largest;
}

TEST(Fp8Run, ChangesTrainingAndEvaluation) {
  for (const bool lora : {false, true})
    for (const char* recipe : {"tensorwise", "delayed"}) {
      SCOPED_TRACE(std::string(recipe) + (lora ? " with adapters" : ""));
      const Losses with = losses_of(fp8_case(recipe, lora)), without = losses_of(fp8_case("", lora));
      ASSERT_EQ(with.size(), 4U);
      for (size_t i = 0; i < with.size(); ++i) EXPECT_NE(with[i], without[i]) << "nothing was rounded at " << i;
      EXPECT_LT(distance(with, without), 0.02);
    }
}

TEST(Fp8Run, AgreesInEveryLayout) {
  for (const bool lora : {false, true})
    for (const char* recipe : {"tensorwise", "delayed"}) {
      const Losses alone = losses_of(fp8_case(recipe, lora));
      for (const auto& [tp, pp, dp, sp] :
           {std::tuple(2, 1, 1, false), std::tuple(2, 1, 1, true), std::tuple(1, 2, 1, false),
            std::tuple(1, 1, 3, false), std::tuple(2, 2, 1, true)}) {
        TrainerCase how = fp8_case(recipe, lora);
        how.tp = tp;
        how.pp = pp;
        how.dp = dp;
        how.args.parallel.sequence_parallel = sp;
        how.args.batch.micro_batch_size = 3 / dp;
        SCOPED_TRACE(fmt::format("{}{}: tp {} pp {} dp {}", recipe, lora ? " with adapters" : "", tp, pp, dp));
        // Scales are those of a rank's own tensors, so that layouts round differently; stages split no tensor.
        EXPECT_LT(distance(losses_of(how), alone), tp * dp == 1 ? 1e-6 : 0.01);
      }
    }
}

TEST(Fp8Run, RecomputesTheSame) {
  for (const bool lora : {false, true})
    for (const char* recipe : {"tensorwise", "delayed"}) {
      TrainerCase how = fp8_case(recipe, lora);
      const Losses kept = losses_of(how);
      how.args.recompute.granularity = config::RecomputeGranularity::kFull;
      EXPECT_EQ(losses_of(how), kept) << recipe;
    }
}

// Experts have scales of their own, whatever the recipe.
TEST(Fp8Run, ExpertsAreInFp8) {
  for (const bool lora : {false, true})
    for (const char* recipe : {"tensorwise", "blockwise"}) {
      SCOPED_TRACE(std::string(recipe) + (lora ? " with adapters" : ""));
      TrainerCase how = fp8_case(recipe, lora);
      const Losses without = losses_of(how, "qwen3_moe");
      how.args.precision.fp8_experts = true;
      const Losses with = losses_of(how, "qwen3_moe");
      for (size_t i = 0; i < with.size(); ++i) EXPECT_NE(with[i], without[i]) << "nothing was rounded at " << i;
      EXPECT_LT(distance(with, without), 0.03);
      how.args.recompute.granularity = config::RecomputeGranularity::kFull;
      EXPECT_EQ(losses_of(how, "qwen3_moe"), with) << "recomputed";
      how.args.recompute.granularity.reset();
      how.pp = 2;
      EXPECT_LT(distance(losses_of(how, "qwen3_moe"), with), 1e-6) << "stages split no tensor";
    }
}

TEST(Fp8Run, WeightGradientsWithoutFp8) {
  TrainerCase how = fp8_case("tensorwise", false);
  const Losses whole = losses_of(how);
  how.args.precision.fp8_wgrad = false;
  const Losses mixed = losses_of(how);
  EXPECT_EQ(mixed[0], whole[0]) << "no gradient was used yet";
  EXPECT_NE(mixed[1], whole[1]);
  EXPECT_LT(distance(mixed, whole), 0.02);
}

}  // namespace
}  // namespace megalith::testing
