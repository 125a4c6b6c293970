// Joules and watts: from the driver's counter to the line.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/observe/energy/energy_callback.h"
#include "megalith/observe/energy/energy_meter.h"
#include "megalith/observe/energy/gpu_monitor.h"
#include "megalith/observe/energy/nvml_device.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

using testing::expect_error;

const DriverLibraries kFake{.nvml = MEGALITH_FAKE_DRIVER, .cuda = MEGALITH_FAKE_DRIVER};

TEST(EnergyMeter, ReadsTheCounterOfItsGpu) {
  void* const library = dlopen(MEGALITH_FAKE_DRIVER, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const running = reinterpret_cast<int (*)()>(dlsym(library, "fakeNvmlRunning"));
  {
    EnergyMeter first(0, kFake), second(1, kFake);
    EXPECT_EQ(running(), 2);
    EXPECT_EQ(first.joules(), 3.5);  // NVML's second GPU; the constructor has read it once
    EXPECT_EQ(second.joules(), 2.5);
    EXPECT_EQ(first.joules(), 5.0);
  }
  EXPECT_EQ(running(), 0);
  expect_error<ConfigError>([] { EnergyMeter(2, kFake); }, {"log_energy", "0000:03:00.0", "Not Supported"});
  EXPECT_EQ(running(), 0);
  dlclose(library);
}

TEST(EnergyMeter, SaysWhatIsMissing) {
  const DriverLibraries absent{.nvml = "libno-such-nvml.so.1", .cuda = MEGALITH_FAKE_DRIVER};
  EXPECT_FALSE(nvml_found(absent));
  EXPECT_TRUE(nvml_found(kFake));
  expect_error<ConfigError>([&] { EnergyMeter(0, absent); }, {"log_energy", "libno-such-nvml.so.1", "nvidia-smi"});
  expect_error<ConfigError>([&] { EnergyMeter(7, kFake); }, {"log_energy", "device 7"});
}

TEST(GpuMonitor, ReadsWhatNvidiaSmiShows) {
  const auto monitor = GpuMonitor::open(0, kFake, std::chrono::milliseconds(0));
  ASSERT_NE(monitor, nullptr);
  const GpuReading first = monitor->read();
  EXPECT_DOUBLE_EQ(first.utilization.value(), 0.97);
  EXPECT_EQ(first.memory_used, 600);
  EXPECT_EQ(first.memory_total, 1000);
  EXPECT_EQ(first.temperature, 61);
  const double watts = first.watts.value();
  EXPECT_DOUBLE_EQ(monitor->read().watts.value(), watts + 1);
  const auto lazy = GpuMonitor::open(0, kFake, std::chrono::hours(1));
  EXPECT_DOUBLE_EQ(lazy->read().watts.value(), watts + 2);
  EXPECT_DOUBLE_EQ(lazy->read().watts.value(), watts + 2) << "the driver is not asked more often than the interval";
}

TEST(GpuMonitor, LeavesOutWhatTheDriverDoesNotKnow) {
  EXPECT_EQ(GpuMonitor::open(0, {.nvml = "libno-such-nvml.so.1", .cuda = MEGALITH_FAKE_DRIVER}), nullptr);
  EXPECT_EQ(GpuMonitor::open(7, kFake), nullptr);
  const GpuReading reading = GpuMonitor::open(2, kFake)->read();  // a GPU without sensors
  EXPECT_FALSE(reading.utilization.has_value());
  EXPECT_FALSE(reading.temperature.has_value());
  EXPECT_FALSE(reading.watts.has_value());
  EXPECT_EQ(reading.memory_used, 600);
}

// Two GPUs, of which one needs twice the power; the second line covers an evaluation.
TEST(EnergyCallback, MeansOfAllRanksSinceTheLastLine) {
  testing::run_ranks(2, [](const testing::Rank& rank) {
    SomeRun run;
    double seconds = 100;
    const double watts = rank.rank == 0 ? 200 : 400;
    EnergyCallback callback(rank.world.world(),
                            {.joules = [&] { return watts * seconds; }, .now = [&] { return seconds; }});
    run.state.global_step = 10;
    run.begin(callback);
    seconds += 4, run.state.global_step = 12;
    const train::MetricList line = run.log(callback, {{"loss", 2}});
    EXPECT_DOUBLE_EQ(*line.find("power_per_device"), 300);
    EXPECT_DOUBLE_EQ(*line.find("energy_per_device"), 600);
    seconds += 1;
    EXPECT_EQ(run.log(callback, {{"eval_loss", 2}}).size(), 1U);
    seconds += 1, run.state.global_step = 13;
    const train::MetricList next = run.log(callback, {{"loss", 2}});
    EXPECT_DOUBLE_EQ(*next.find("power_per_device"), 300);
    EXPECT_DOUBLE_EQ(*next.find("energy_per_device"), 600);
  });
}

}  // namespace
}  // namespace megalith::observe
