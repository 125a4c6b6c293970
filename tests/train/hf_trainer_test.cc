// Twenty steps as Hugging Face's Trainer makes them on the golden models: tests/data/hf_trainer/make.py wrote its
// losses, gradient norms and learning rates down. With MEGALITH_PYTHON the Trainer runs again, here.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/close.h"
#include "tests/support/subprocess.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

constexpr const char* kFolder = "tests/data/hf_trainer";

const json& recorded() {
  static const json file = [] {
    std::ifstream stream(fmt::format("{}/losses.json", kFolder));
    return json::parse(stream);
  }();
  return file;
}

std::vector<data::Sequence> rows_of(const json& file) {
  std::vector<data::Sequence> rows;
  for (const json& row : file.at("rows")) rows.push_back({.ids = row.at("input_ids"), .labels = row.at("labels")});
  return rows;
}

// The settings of the recorded runs, for `how`'s data-parallel size.
TrainerCase with_settings(TrainerCase how, const json& file) {
  const json& settings = file.at("settings");
  const int batch = file.at("micro_batch_size"), steps = file.at("gradient_accumulation_steps");
  how.args.run.max_steps = static_cast<int64_t>(file.at("rows").size()) / (batch * steps);
  how.args.batch.micro_batch_size = batch;
  how.args.batch.gradient_accumulation_steps = steps / how.dp;
  how.args.optimizer.learning_rate = settings.at("learning_rate");
  how.args.optimizer.weight_decay = settings.at("weight_decay");
  how.args.optimizer.adam_beta1 = settings.at("adam_beta1");
  how.args.optimizer.adam_beta2 = settings.at("adam_beta2");
  how.args.optimizer.adam_epsilon = settings.at("adam_epsilon");
  how.args.optimizer.max_grad_norm = settings.at("max_grad_norm");
  EXPECT_EQ(settings.at("lr_scheduler_type"), "cosine");
  how.args.schedule.lr_scheduler_type = config::HfScheduler::kCosine;
  how.args.schedule.warmup_steps = settings.at("warmup_steps");
  return how;
}

void expect_steps(const std::string& model, const json& expected, const json& file, TrainerCase how) {
  SCOPED_TRACE(how.name);
  const std::vector<data::Sequence> rows = rows_of(file);
  const RunLog run = run_training(read_golden_model(model).folder, with_settings(std::move(how), file), rows, rows);
  const auto compare = [&](const std::string& ours, const std::string& theirs, double tolerance) {
    const std::vector<double> got = run.numbers(ours), want = expected.at(theirs);
    ASSERT_EQ(got.size(), want.size()) << ours;
    for (size_t i = 0; i < got.size(); ++i)
      expect_close(got[i], want[i], fmt::format("{} of step {}", ours, i + 1), tolerance);
  };
  // The state of a delta net runs through the sequence and carries rounding along, and this tiny one magnifies it: the
  // two runs part slowly.
  const bool carries = model::read_model_config(read_golden_model(model).folder).delta_net.has_value();
  compare("loss", "losses", carries ? 1e-4 : 1e-5);
  compare("grad_norm", "grad_norms", carries ? 3e-2 : 1e-4);
  compare("learning_rate", "learning_rates", 1e-6);
}

std::vector<std::string> recorded_models() {
  std::vector<std::string> names = golden_model_names();
  std::erase_if(names, [](const std::string& name) { return !recorded().at("models").contains(name); });
  return names;
}

class HfTrainer : public ::testing::TestWithParam<std::string> {};

TEST_P(HfTrainer, TwentySteps) {
  if (!model_type_supported(golden_model_type(GetParam()))) GTEST_SKIP() << GetParam() << " is not supported";
  const json& expected = recorded().at("models").at(GetParam());
  expect_steps(GetParam(), expected, recorded(), {});
  TrainerCase spread{.name = "tp pp dp, distributed optimizer", .tp = 2, .pp = 2, .dp = 2};
  spread.args.parallel.sequence_parallel = true;
  spread.args.optimizer.use_distributed_optimizer = true;
  expect_steps(GetParam(), expected, recorded(), spread);
}

INSTANTIATE_TEST_SUITE_P(Recorded, HfTrainer, ::testing::ValuesIn(golden_or_none(recorded_models())),
                         [](const auto& test) { return test.param; });

// The same numbers again from the Trainer itself.
TEST(HfTrainerAgain, Llama) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with transformers";
  if (run_process({python, "-c", "import transformers, accelerate"}).exit_code != 0)
    GTEST_SKIP() << "the Python of MEGALITH_PYTHON has no transformers with its Trainer";
  const ProcessResult made = run_process(
      {python, fmt::format("{}/make.py", kFolder), read_golden_model("llama").folder.parent_path().string(), "llama"},
      {}, std::chrono::minutes(3));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json file = json::parse(made.out);
  expect_steps("llama", file.at("models").at("llama"), file, {});
}

}  // namespace
}  // namespace megalith::testing
