#include "megalith/observe/device_cost.h"

#include <gtest/gtest.h>

#include "tests/observe/some_run.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

TEST(DeviceCost, PeaksByTheDriversNames) {
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H20"), 148e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-40GB"), 312e12);
  EXPECT_EQ(peak_flops("NVIDIA A10"), 125e12);
  EXPECT_EQ(peak_flops("NVIDIA A10G"), 70e12);
  EXPECT_EQ(peak_flops("NVIDIA L40S"), 362e12);
  EXPECT_EQ(peak_flops("NVIDIA L4"), 121e12);
  EXPECT_EQ(peak_flops("NVIDIA GB200"), 2500e12);
  EXPECT_EQ(peak_flops("Intel(R) Xeon(R) Platinum 8480C"), std::nullopt);
}

TEST(DeviceCost, CompletesTheTrainersLines) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    SomeRun run;
    DeviceCostCallback callback(r.world.world(), {.flops_per_token = 4e9, .peak_bytes = [&] { return 100 + r.rank; }});
    const auto line = run.log(callback, {{"loss", 1}, {"tokens_per_second", 1000}});
    EXPECT_EQ(line,
              (train::MetricList{{"loss", 1}, {"tokens_per_second", 1000}, {"tflops_per_device", 2}, {"memory", 101}}));
    // Images cost what the trainer counts for them.
    EXPECT_EQ(
        run.log(callback, {{"tokens_per_second", 1000}, {"tower_flops_per_second", 1e12}}).find("tflops_per_device"),
        2.5);
    EXPECT_EQ(run.log(callback, {{"eval_loss", 1}}), (train::MetricList{{"eval_loss", 1}}));
    DeviceCostCallback device(r.world.world(), {.flops_per_token = 4e9,
                                                .peak_bytes = [&] { return 100 + r.rank; },
                                                .reserved_bytes = [&] { return 300 - r.rank; }});
    EXPECT_EQ(run.log(device, {{"tokens_per_second", 1000}}).find("memory"), 101);
    EXPECT_EQ(run.log(device, {{"tokens_per_second", 1000}}).find("memory_reserved"), 300);
    DeviceCostCallback plain(r.world.world(), {.flops_per_token = 4e9});
    EXPECT_EQ(run.log(plain, {{"tokens_per_second", 1000}}).find("memory"), std::nullopt);
    EXPECT_EQ(run.log(plain, {{"tokens_per_second", 1000}}).find("fp8_share"), std::nullopt);
    DeviceCostCallback in_fp8(r.world.world(), {.flops_per_token = 4e9, .fp8_share = 0.75});
    EXPECT_EQ(run.log(in_fp8, {{"tokens_per_second", 1000}}).find("fp8_share"), 0.75);
  });
}

}  // namespace
}  // namespace megalith::observe
