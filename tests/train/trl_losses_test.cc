// Losses of pairs against trl's DPOTrainer: golden/trl/make.py says how its numbers were made.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/config/enums.h"
#include "tests/support/close.h"
#include "tests/train/preference_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

// `name` is a pref_loss, with a word more where options matter.
config::PreferenceConfig preference_of(const std::string& name, const json& options) {
  config::PreferenceConfig how;
  const auto loss = config::choice_of<config::PrefLoss>(name.substr(0, name.find(' ')));
  if (!loss) throw std::runtime_error(name + " is not a pref_loss");
  how.loss = *loss;
  how.beta = options.value("beta", how.beta);
  how.label_smoothing = options.value("label_smoothing", how.label_smoothing);
  how.discopop_tau = options.value("discopop_tau", how.discopop_tau);
  if (options.contains("ld_alpha")) how.ld_alpha = options.at("ld_alpha").get<double>();
  return how;
}

// All pairs are one micro-batch, unless pipeline stages or data-parallel ranks share them.
TrainerCase trl_case(const json& golden, const std::string& name, int tp = 1, int pp = 1, int cp = 1, int dp = 1) {
  TrainerCase how = preference_case(fmt::format("{} tp {} pp {} cp {} dp {}", name, tp, pp, cp, dp), 4, pp, dp);
  how.tp = tp, how.pp = pp, how.cp = cp;
  how.args.parallel.sequence_parallel = tp > 1;
  how.args.batch.eval_micro_batch_size = 4 / dp / pp;
  take_optimizer(golden.at("optimizer"), how.args);
  how.args.preference = preference_of(name, golden.at("dpo").at(name).at("options"));
  return how;
}

PairRun trl_run(const GoldenPairs& pairs) {
  return {.policy = pairs.policy, .reference = pairs.reference, .pairs = pairs.pairs};
}

void expect_first_step(const json& expected, const RunLog& run) {
  ASSERT_FALSE(run.lines.empty());
  const train::MetricList& line = run.lines.front();
  const auto expect = [&](const char* key, const json& value, double tolerance, double noise) {
    ASSERT_TRUE(line.find(key)) << key;
    expect_close(*line.find(key), value.get<double>(), key, tolerance, noise);
  };
  expect("loss", expected.at("losses")[0], kClose, 1e-5);
  expect("grad_norm", expected.at("grad_norms")[0], 5e-5, 0);
  for (const char* key : {"rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"})
    expect(key, expected.at(key)[0], 5e-5, 1e-5);
  expect("rewards/margins", expected.at("rewards/margins")[0], 5e-4, 1e-5);
}

TEST(GoldenTrlLosses, FiveStepsOfEveryLoss) {
  const json golden = golden_json("trl/answers.json");
  const GoldenPairs pairs = read_golden_pairs();
  for (const auto& [name, expected] : golden.at("dpo").items()) {
    SCOPED_TRACE(name);
    const RunLog run = run_preferences(trl_case(golden, name), trl_run(pairs));
    expect_first_step(expected, run);
    std::vector<double> losses = run.numbers("loss");
    losses.push_back(*run.evaluation.find("eval_loss"));
    const std::vector<double> norms = run.numbers("grad_norm");
    ASSERT_EQ(losses.size(), expected.at("losses").size());
    ASSERT_EQ(norms.size(), expected.at("grad_norms").size());
    for (size_t i = 0; i < losses.size(); ++i)
      expect_close(losses[i], expected.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 2e-4, 2e-5);
    for (size_t i = 0; i < norms.size(); ++i)
      expect_close(norms[i], expected.at("grad_norms")[i], fmt::format("gradient norm {}", i), 5e-4, 1e-4);
  }
}

// aot sorts the pairs of a micro-batch, so only layouts with a single one give the same numbers.
TEST(GoldenTrlLosses, LayoutsOfTheFirstStep) {
  const json golden = golden_json("trl/answers.json");
  const GoldenPairs pairs = read_golden_pairs();
  for (const auto& [name, expected] : golden.at("dpo").items()) {
    const bool whole = name.starts_with("aot");
    TrainerCase how = whole ? trl_case(golden, name, 2, 1, 2, 1) : trl_case(golden, name, 1, 2, 2, 2);
    how.args.run.max_steps = 1;
    SCOPED_TRACE(how.name);
    expect_first_step(expected, run_preferences(how, trl_run(pairs)));
  }
}

}  // namespace
}  // namespace megalith::testing
