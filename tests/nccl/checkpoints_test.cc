// Runs that are saved in one layout and continued in another, and what `convert` makes of their checkpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/nccl/rank_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSavedStep = 2;
const Words kSharded{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather",
                     "--ddp_bucket_size=6000"};

// `before` and `after` differ in their layouts alone.
struct ChangeOfLayout {
  RankCase before, after;
  std::string name() const { return after.name; }
  friend void PrintTo(const ChangeOfLayout& change, std::ostream* out) { *out << change.name(); }
};

std::vector<ChangeOfLayout> dense_changes() {
  return {
      {{.name = "dp2", .dp = 2}, {.name = "dp2_to_cp2", .cp = 2}},
      {{.name = "zero1", .dp = 2, .layout = kSharded}, {.name = "zero1_to_tp2", .tp = 2}},
      // In the background, by one thread that stays: every checkpoint is whole, and no step waits for it.
      {{.name = "async",
        .dp = 2,
        .layout = {"--use_distributed_optimizer", "--async_save", "--use_persistent_ckpt_worker", "--save_steps=1"}},
       {.name = "zero1_async_to_pp2", .pp = 2}},
      {{.name = "tp2_pp2", .tp = 2, .pp = 2}, {.name = "tp2_pp2_to_zero1", .dp = 2, .layout = kSharded}},
      {{.name = "pp2_vpp2", .pp = 2, .layout = {"--vpp=2"}},
       {.name = "pp2_vpp2_to_tp2_sp", .tp = 2, .layout = {"--sequence_parallel"}}},
  };
}

std::vector<ChangeOfLayout> other_changes() {
  const CaseData samples = CaseData::kSamples;
  const Words lora{"--finetuning_type=lora", "--lora_rank=4", "--lora_target=all"};
  const Words history{"--fp8_recipe=delayed", "--fp8_amax_history_len=4", "--fp8_amax_compute_algo=max"};
  const Words own_experts{"--sequence_parallel", "--ep=2", "--etp=1"};
  return {
      {{.name = "ep2", .family = "qwen3_moe", .dp = 2, .data = samples, .layout = {"--ep=2"}},
       {.name = "ep2_to_tp2_ep2", .family = "qwen3_moe", .tp = 2, .data = samples, .layout = own_experts}},
      {{.name = "lora_tp2", .tp = 2, .data = samples, .run = lora},
       {.name = "lora_tp2_to_dp2", .dp = 2, .data = samples, .run = lora}},
      // The histories of fp8 scales are part of the state.
      {{.name = "fp8_tp2", .family = "llama_wide", .tp = 2, .precision = Precision::kFp8, .run = history},
       {.name = "fp8_tp2_to_tp2", .family = "llama_wide", .tp = 2, .precision = Precision::kFp8, .run = history}},
  };
}

std::vector<ChangeOfLayout> all_changes() {
  std::vector<ChangeOfLayout> all = dense_changes();
  for (ChangeOfLayout& each : other_changes()) all.push_back(std::move(each));
  return all;
}

// Trains the case with checkpoints; its folder.
fs::path train_with_saves(const RankCase& how, Transport transport, const fs::path& output) {
  RankCase saving = how;
  saving.layout.insert(saving.layout.begin(), {"--save_strategy=steps", fmt::format("--save_steps={}", kSavedStep)});
  run_job(case_command(saving, transport, output), how.ranks(), transport);
  return output;
}

void expect_whole(const fs::path& checkpoint) {
  const ProcessResult result =
      run_process({MEGALITH_PROGRAM, "convert", "--checkpoint_path=" + checkpoint.string(), "--verify"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

void expect_continued(const ChangeOfLayout& change, Transport transport) {
  const TempFolder folder;
  const fs::path checkpoint =
      train_with_saves(change.before, transport, folder / "before") / fmt::format("checkpoint-{}", kSavedStep);
  expect_whole(checkpoint);
  RankCase after = change.after;
  after.layout.push_back("--resume_from_checkpoint=" + checkpoint.string());
  const JobEnd end = run_job(case_command(after, transport, folder / "after"), after.ranks(), transport);
  const DeviceRun continued = read_run(folder / "after");
  EXPECT_EQ(continued.losses.size(), size_t{kRankSteps - kSavedStep});
  const RunDifference found =
      difference_of(continued, read_run(case_reference(after, transport)), kRankSteps - kSavedStep);
  expect_agreement(after, transport, found, end);
}

class Checkpoints : public ::testing::TestWithParam<ChangeOfLayout> {};

TEST_P(Checkpoints, ContinueInAnotherLayout) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  if (const std::string obstacle = obstacle_of(GetParam().after, *transport); !obstacle.empty())
    GTEST_SKIP() << obstacle;
  expect_continued(GetParam(), *transport);
}

INSTANTIATE_TEST_SUITE_P(Ranks4, Checkpoints, ::testing::ValuesIn(all_changes()),
                         [](const auto& each) { return each.param.name(); });

// The last checkpoint holds what the run exports.
void expect_converted(Transport transport) {
  const TempFolder folder;
  const RankCase how{.name = "tp2_pp2", .tp = 2, .pp = 2};
  const fs::path output = train_with_saves(how, transport, folder / "out");
  const ProcessResult result =
      run_process({MEGALITH_PROGRAM, "convert",
                   fmt::format("--checkpoint_path={}", (output / fmt::format("checkpoint-{}", kRankSteps)).string()),
                   "--output_path=" + (folder / "plain").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto converted = read_tensors(folder / "plain" / "model.safetensors");
  const auto exported = read_tensors(output / "model.safetensors");
  ASSERT_EQ(converted.size(), exported.size());
  for (const auto& [name, tensor] : exported)
    EXPECT_TRUE(converted.contains(name) && at::equal(converted.at(name), tensor)) << name;
}

TEST(CheckpointsOfRanks, AreConverted) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  expect_converted(*transport);
}

// On any machine.
TEST(CheckpointsOverGloo, ContinueInAnotherLayoutOnTheCpu) {
  expect_continued(dense_changes().at(1), Transport::kGlooOnCpu);
}

}  // namespace
}  // namespace megalith::testing
