#include "megalith/parallel/gpu_count.h"

#include <gtest/gtest.h>

#include <fstream>

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

}  // namespace
}  // namespace megalith::parallel
