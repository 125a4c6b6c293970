// `megalith rehearse` on a GPU: the rank's kernels for real, the operations of all other ranks as stand-ins on streams.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/cuda/device_case.h"
#include "tests/cuda/program_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

class OnCudaRehearsal : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != TestDevice::kCuda) GTEST_SKIP() << "no GPU";
  }
};

json rehearse(const ProgramCase& model, const std::vector<std::string>& more) {
  std::vector<std::string> words{MEGALITH_PROGRAM,
                                 "rehearse",
                                 "--model=" + model.path(""),
                                 "--gpu=h200",
                                 "--bf16",
                                 "--cutoff_len=1024",
                                 "--per_device_train_batch_size=1",
                                 "--gradient_accumulation_steps=4",
                                 "--use_distributed_optimizer",
                                 "--overlap_grad_reduce",
                                 "--overlap_param_gather",
                                 "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const ProcessResult result = run_process(words, {}, std::chrono::seconds(100));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

// Waits are a part of the step, and memory is what the planner says.
TEST_F(OnCudaRehearsal, ARankOfManyIsTimedAndMeasured) {
  const ProgramCase model(llama_config({.width = 2048, .layers = 8, .vocab = 32000}), {});
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"--world-size=64"},
           {"--world-size=256", "--tp=4", "--pp=4", "--stage=1", "--sequence_parallel"},
           {"--world-size=64", "--cp=4"}}) {
    const json found = rehearse(model, layout);
    ASSERT_FALSE(found.is_null()) << layout.front();
    const json &rehearsed = found.at("rehearsed"), &planned = found.at("planned");
    fmt::print("rehearsed {}: {}\nplanned: {}\n", fmt::join(layout, " "), rehearsed.dump(), planned.dump());
    const double step = rehearsed.at("step_s"),
                 waited = rehearsed.at("exposed_s").get<double>() + rehearsed.at("bubble_s").get<double>();
    EXPECT_GT(step, 0);
    EXPECT_GE(waited, 0);
    EXPECT_LT(waited, step);
    const double peak = rehearsed.at("peak"), expected = planned.at("peak");
    EXPECT_NEAR(peak, expected, 0.05 * expected);
  }
}

}  // namespace
}  // namespace megalith::testing
