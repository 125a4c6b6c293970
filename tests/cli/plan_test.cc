// `megalith plan` in this process.
#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/run/exit_code.h"
#include "tests/cli/preview_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::cli {
namespace {

Answer plan(const std::string& line) { return answer_of(run_plan, line); }

TEST(Plan, prints_layouts_and_options) {
  const testing::TempFolder folder;
  const std::string file = (folder / "plan.yaml").string();
  const Answer answer = plan("--gpus 8 --cutoff_len 1024 --global_batch_size 64 --output " + file + golden_model());
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  for (const char* part : {"MFU", "limited by", "per_device_train_batch_size", "bf16: true"})
    EXPECT_TRUE(contains(answer.out, part)) << part << "\n" << answer.out;
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, std::vector{file});
  EXPECT_TRUE(parsed.args.precision.bf16);
  parsed.report.check_runnable();
}

TEST(Plan, gives_json) {
  const auto json = plan("--gpus 8 --best 2 --json --global_batch_size 64" + golden_model("mixtral")).json();
  EXPECT_EQ(json.at("best").size(), 2U);
  EXPECT_GT(json.at("best")[0].at("time").at("mfu"), 0);
}

TEST(Plan, simulates_runs_of_many_sizes) {
  const Answer answer = plan("--gpus 256 --simulate --days 2 --global_batch_size 256" + golden_model());
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  EXPECT_TRUE(contains(answer.out, "useful")) << answer.out;
}

TEST(Plan, says_what_is_wrong) {
  EXPECT_TRUE(contains(plan("--gpus 8").error, "--model DIR"));
  EXPECT_TRUE(contains(plan(golden_model()).error, "--gpus N"));
  EXPECT_TRUE(contains(plan("--gpus 0" + golden_model()).error, "gpus is 0"));
  EXPECT_TRUE(contains(plan("--gpus 8 --gpu v100" + golden_model()).error, "not a known GPU kind"));
  EXPECT_TRUE(contains(plan("--gpus 8 --gpus_per_node 0" + golden_model()).error, "gpus_per_node is 0"));
  EXPECT_TRUE(contains(plan("--gpus 8 --model /no/such").error, "/no/such"));
  const Answer heads = plan("--gpus 12 --tp 3 --global_batch_size 48" + golden_model());
  EXPECT_EQ(heads.exit_code, kBadInput);
  EXPECT_TRUE(contains(heads.out, "tensor_model_parallel_size 3")) << heads.out;
  EXPECT_TRUE(contains(heads.out, "nearest that fits")) << heads.out;
}

}  // namespace
}  // namespace megalith::cli
