#include "megalith/comm/store/process_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Flags.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

C10_DECLARE_int(caffe2_log_level);

namespace megalith::comm {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

// A variable for the time of a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~ScopedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(ProcessSettings, TheLimitOfOpenFilesIsRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(512, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  raise_file_limit();
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, 1 << 20));
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(ProcessSettings, NcclFollowsTheInterfaceUnlessItHasItsOwn) {
  const ScopedVariable unset("NCCL_SOCKET_IFNAME", nullptr);
  {
    const ScopedVariable none("MEGALITH_SOCKET_IFNAME", nullptr);
    pass_interface_to_nccl();
    EXPECT_EQ(std::getenv("NCCL_SOCKET_IFNAME"), nullptr);
  }
  const ScopedVariable ours("MEGALITH_SOCKET_IFNAME", "ib0");
  pass_interface_to_nccl();
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=ib0");
  const ScopedVariable given("NCCL_SOCKET_IFNAME", "eth");
  pass_interface_to_nccl();
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth");
}

TEST(ProcessSettings, SegmentsGrowUnlessTheUserHasSetTheAllocator) {
  ASSERT_FALSE(AcceleratorAllocatorConfig::use_expandable_segments());
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const ScopedVariable given(name, "expandable_segments:False");
    use_expandable_segments();
    EXPECT_FALSE(AcceleratorAllocatorConfig::use_expandable_segments()) << name;
  }
  const ScopedVariable general("PYTORCH_ALLOC_CONF", nullptr), older("PYTORCH_CUDA_ALLOC_CONF", nullptr);
  use_expandable_segments();
  EXPECT_TRUE(AcceleratorAllocatorConfig::use_expandable_segments());
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
}

// The settings stay with the process, so each case has one of its own.
void expect_prepared(const std::vector<std::string>& backends, const char* recorder, int log_level) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_CPP_LOG_LEVEL", "MEGALITH_LOG_LEVEL"}) unsetenv(name);
        for (const std::string& backend : backends) prepare_c10d(backend);
        const char* buffer = std::getenv("TORCH_FR_BUFFER_SIZE");
        const bool right =
            std::string(buffer == nullptr ? "" : buffer) == recorder && FLAGS_caffe2_log_level == log_level;
        std::exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ProcessSettingsDeathTest, TheFlightRecorderAndErrorsStayOnForNccl) { expect_prepared({"nccl"}, "", 2); }
TEST(ProcessSettingsDeathTest, GlooHasNeither) { expect_prepared({"gloo"}, "0", 3); }
TEST(ProcessSettingsDeathTest, MakingThemAgainChangesNothing) { expect_prepared({"nccl", "nccl"}, "", 2); }
// A rank of a second attempt: its launcher has served a store before the fork.
TEST(ProcessSettingsDeathTest, ErrorsStayOnForNcclAfterALaunchersStore) { expect_prepared({"gloo", "nccl"}, "0", 2); }

}  // namespace
}  // namespace megalith::comm
