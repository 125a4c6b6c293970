// Preference training of an adapter: the reference is the policy below it.
#include <gtest/gtest.h>

#include "megalith/config/derive.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/preference_case.h"

namespace megalith::testing {
namespace {

RunLog run_with_adapter(const GoldenPairs& golden, const TrainerCase& how) {
  SCOPED_TRACE(how.name);
  const config::TrainingArguments args = how.effective();
  const auto adapter = golden_dir() / "hf" / golden.json.at("lora").at("adapter").get<std::string>();
  RunLog result;
  run_ranks(how.ranks(), [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
    context.rng().seed(layout::adapter_seeds(args.seeds.seed, context.grid(), rank.rank));
    model::VirtualModels models = model::with_adapter(golden.policy, run::model_settings(args, context.device()),
                                                      context, {.trained = adapter, .keep_base = true});
    data::CollatorOptions collator = how.collator;
    collator.tp = how.tp;
    collator.cp = how.cp;
    const TrainerRank mine{rank, args, models, data::Collator(collator)};
    Recorder::Heard heard;
    train::TrainerSetup setup = mine.setup(golden.pairs, golden.pairs);
    setup.objective = std::make_unique<train::PreferenceObjective>(
        run::preference_settings(args.preference), context,
        train::ReferenceModel::below_adapter(models, run::step_settings(args)));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(models, run::trainer_settings(args, models.context().grid().shape()), std::move(setup));
    const train::TrainOutput output = trainer.train();
    RunLog log{heard.lines, trainer.evaluate(), output};
    if (rank.rank == 0) result = std::move(log);
  });
  return result;
}

TEST(GoldenPreferenceLora, hf_preference_lora) {
  const GoldenPairs golden = read_golden_pairs();
  const auto& expected = golden_member(golden.json, "lora");
  const auto& optimizer = golden.json.at("optimizer");
  for (const auto& [tp, pp, cp, dp] : {std::array{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 2}, {2, 2, 2, 1}}) {
    TrainerCase how = preference_case(fmt::format("tp {} pp {} cp {} dp {}", tp, pp, cp, dp),
                                      static_cast<int>(golden.pairs->size()), pp, dp);
    how.tp = tp, how.pp = pp, how.cp = cp;
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.parallel.sequence_parallel = tp > 1;
    how.args.preference = *golden_preference(golden.json, "sigmoid");
    how.args.run.max_steps = optimizer.at("steps");
    how.args.optimizer.learning_rate = optimizer.at("lr");
    how.args.optimizer.weight_decay = optimizer.at("weight_decay");
    how.args.optimizer.max_grad_norm = optimizer.at("clip");
    const RunLog run = run_with_adapter(golden, how);
    SCOPED_TRACE(how.name);
    std::vector<double> losses = run.numbers("loss");
    losses.push_back(*run.evaluation.find("eval_loss"));
    const auto norms = run.numbers("grad_norm");
    const auto& train = expected.at("train");
    ASSERT_EQ(losses.size(), train.at("losses").size());
    ASSERT_EQ(norms.size(), train.at("grad_norms").size());
    for (size_t i = 0; i < losses.size(); ++i)
      expect_close(losses[i], train.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 1e-4);
    for (size_t i = 0; i < norms.size(); ++i)
      expect_close(norms[i], train.at("grad_norms")[i], fmt::format("gradient norm {}", i), 1e-4);
    expect_close(*run.lines.front().find("rewards/margins"), expected.at("rewards_margin"), "margin", 5e-5);
    expect_close(*run.lines.front().find("rewards/accuracies"), expected.at("rewards_accuracy"), "accuracy");
  }
}

// The reference is the base below the adapter, which may be quantized: as on a dense base of the same numbers.
void expect_quantized_reference(int bits) {
  const GoldenPairs golden = read_golden_pairs();
  TrainerCase plain = preference_case("dense", static_cast<int>(golden.pairs->size()), 1, 1);
  plain.args.run.finetuning_type = config::FinetuningType::kLora;
  plain.args.preference = *golden_preference(golden.json, "sigmoid");
  plain.args.run.max_steps = 2;
  TrainerCase how = plain;
  how.name = fmt::format("in {} bits", bits);
  how.args.lora.quantization_bit = bits;
  const TempFolder folder;
  const config::TrainingArguments args = how.effective();
  const auto adapter = golden_dir() / "hf" / golden.json.at("lora").at("adapter").get<std::string>();
  run_ranks(1, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
    const model::VirtualModels models =
        model::with_adapter(golden.policy, run::model_settings(args, context.device()), context, {.trained = adapter});
    model::save_pretrained(models, folder / "numbers", {.dtype = at::kFloat});
  });
  GoldenPairs numbers = golden;
  numbers.policy = folder / "numbers";
  const RunLog kept = run_with_adapter(golden, how), dense = run_with_adapter(numbers, plain);
  EXPECT_EQ(kept.numbers("loss").size(), 2);
  EXPECT_EQ(kept.numbers("loss"), dense.numbers("loss"));
}

TEST(PreferenceLora, TheReferenceMayBeQuantized) {
  for (const int bits : {4, 8}) expect_quantized_reference(bits);
}

}  // namespace
}  // namespace megalith::testing
