// Steps with experts on several ranks in which the host may wait for the device in one way only: for the copies that
// ops::HostTensor announces, the loads of a dispatch and the totals of the step. How many of these there are is counted
// on the CPU (tests/train/host_waits_test.cc); here libtorch ends a run that waits anywhere else.
#include <gtest/gtest.h>

#include "tests/nccl/rank_case.h"

namespace megalith::testing {
namespace {

const Words kPadded{"--moe_expert_capacity_factor=1.5", "--moe_pad_expert_input_to_capacity"};

// In bf16, where grouped products take their counts from the device.
RankCase in_bf16(RankCase how) {
  how.data = CaseData::kSamples;
  how.precision = Precision::kBf16;
  return how;
}

std::vector<RankCase> waiting_cases() {
  const Words own_experts{"--sequence_parallel", "--ep=2", "--etp=1"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  std::vector<RankCase> all{
      {.name = "ep2", .family = "qwen3_moe", .dp = 2, .layout = {"--ep=2"}},
      {.name = "ep2_allgather",
       .family = "qwen3_moe",
       .dp = 2,
       .layout = {"--ep=2", "--moe_token_dispatcher_type=allgather"}},
      {.name = "ep2_dropping",
       .family = "qwen3_moe",
       .dp = 2,
       .layout = {"--ep=2", "--moe_expert_capacity_factor=1.0", "--moe_token_drop_policy=probs"}},
      {.name = "ep2_padded", .family = "qwen3_moe", .dp = 2, .layout = with({"--ep=2"}, kPadded)},
      {.name = "tp2_ep2_padded", .family = "qwen3_moe", .tp = 2, .layout = with(own_experts, kPadded)},
      {.name = "tp2_etp2", .family = "qwen3_moe", .tp = 2, .layout = {"--sequence_parallel", "--etp=2"}},
      {.name = "ep2_recompute", .family = "qwen3_moe", .dp = 2, .layout = {"--ep=2", "--recompute_granularity=full"}},
      {.name = "ep2_shared_overlap",
       .family = "glm4_moe",
       .dp = 2,
       .layout = {"--ep=2", "--moe_shared_expert_overlap"}},
      {.name = "ep2_beside", .family = "glm4_moe", .dp = 2, .layout = {"--ep=2", "--overlap_moe_expert_parallel_comm"}},
      {.name = "pp2_ep2", .family = "qwen3_moe", .pp = 2, .dp = 2, .layout = {"--ep=2"}}};
  for (RankCase& how : all) how = in_bf16(std::move(how));
  return all;
}

class ExpertWaits : public ::testing::TestWithParam<RankCase> {};

// From the fourth of kRankSteps steps on.
TEST_P(ExpertWaits, OnlyForWhatIsAnnounced) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  const RankCase& how = GetParam();
  const TempFolder folder;
  run_job(case_command(how, *transport, folder / "out"), how.ranks(), *transport, how.starter,
          {{"MEGALITH_FORBID_DEVICE_WAITS", "1"}});
}

const auto kWaitingName = [](const auto& each) { return each.param.name; };
INSTANTIATE_TEST_SUITE_P(Ranks2, ExpertWaits, ::testing::ValuesIn(waiting_cases()), kWaitingName);

}  // namespace
}  // namespace megalith::testing
