#include "megalith/parallel/gpu_count.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "megalith/base/env.h"
#include "megalith/comm/world.h"
#include "tests/support/temp_folder.h"

namespace megalith::parallel {
namespace {

TEST(GpuCount, NoMoreThanDeviceFilesAndVisibleDevices) {
  const testing::TempFolder folder;
  EXPECT_EQ(most_gpus(folder / "none", std::nullopt), std::nullopt);
  for (const char* name : {"nvidiactl", "nvidia", "nvidia-uvm", "nvidia1x", "tty0"}) std::ofstream(folder / name) << "";
  EXPECT_EQ(most_gpus(folder.path(), std::nullopt), std::nullopt);
  for (const char* name : {"nvidia0", "nvidia3", "nvidia11"}) std::ofstream(folder / name) << "";
  EXPECT_EQ(most_gpus(folder.path(), std::nullopt), 3);
  EXPECT_EQ(most_gpus(folder.path(), "2"), 1);
  EXPECT_EQ(most_gpus(folder.path(), "GPU-8d1f,GPU-77aa"), 2);
  EXPECT_EQ(most_gpus(folder.path(), "0,1,2,3,4"), 3);
}

TEST(GpuCount, UsableOnesUnlessTheUserHidesThem) {
  const testing::TempFolder folder;
  EXPECT_EQ(usable_gpus(folder.path(), std::nullopt), std::nullopt);
  std::ofstream(folder / "nvidia3") << "";
  EXPECT_EQ(usable_gpus(folder.path(), std::nullopt), "1 NVIDIA GPU");
  std::ofstream(folder / "nvidia4") << "";
  EXPECT_EQ(usable_gpus(folder.path(), std::nullopt), "2 NVIDIA GPUs");
  EXPECT_EQ(usable_gpus(folder.path(), "1"), "1 NVIDIA GPU");
  for (const char* none : {"", "-1", "NoDevFiles"}) EXPECT_EQ(usable_gpus(folder.path(), none), std::nullopt) << none;
}

// A machine with two GPUs, made of files; the variables are put back at the end.
class UnusedGpus : public ::testing::Test {
 protected:
  UnusedGpus() {
    for (const char* name : {"nvidia0", "nvidia1", "nvidiactl"}) std::ofstream(devices_ / name) << "";
    ::setenv("MEGALITH_DEVICE_DIR", devices_.path().c_str(), 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ~UnusedGpus() override {
    ::unsetenv("MEGALITH_DEVICE_DIR");
    if (visible_) ::setenv("CUDA_VISIBLE_DEVICES", visible_->c_str(), 1);
  }
  static std::string said(const DeviceSettings& settings) {
    ::testing::internal::CaptureStderr();
    warn_of_unused_gpus(settings);
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  std::optional<std::string> visible_ = env_exact("CUDA_VISIBLE_DEVICES");
  testing::TempFolder devices_;
};

TEST_F(UnusedGpus, ABuildForTheCpuWarnsOnce) {
  const std::string text = said({});
  if (comm::nccl_available()) {
    EXPECT_EQ(text, "");
    return;
  }
  for (const char* part : {"2 NVIDIA GPUs", "for the CPU", "make build", "--use_cpu true"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST_F(UnusedGpus, NotWhenTheUserChoseTheCpu) {
  EXPECT_EQ(said({.use_cpu = true}), "");
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(said({}), "");
}

}  // namespace
}  // namespace megalith::parallel
