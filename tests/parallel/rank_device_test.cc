#include "megalith/parallel/rank_device.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::parallel {
namespace {

c10::Device gpu(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

TEST(ChooseDevice, TheCpuWithoutGpusOrOnRequest) {
  EXPECT_EQ(choose_device({.gpus = 0, .local_rank = 3, .local_world_size = 4}), c10::Device(c10::kCPU));
  EXPECT_EQ(choose_device({.gpus = 8, .local_rank = 3, .local_world_size = 8, .settings = {.use_cpu = true}}),
            c10::Device(c10::kCPU));
}

TEST(ChooseDevice, OfSeveralTheOneOfTheLocalRank) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(choose_device({.gpus = 8, .local_rank = rank, .local_world_size = 8}), gpu(rank));
  EXPECT_EQ(
      choose_device({.gpus = 8, .local_rank = 3, .local_world_size = 4, .settings = {.backend = BackendChoice::kNccl}}),
      gpu(3));
}

// srun --gpus-per-task=1, wrappers, Ray, Kubernetes: each rank sees its own alone, as number 0.
TEST(ChooseDevice, TheOnlyVisibleOneWhateverTheLocalRankIs) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(choose_device({.gpus = 1, .local_rank = rank, .local_world_size = 8}), gpu(0));
}

TEST(ChooseDevice, MoreRanksThanGpusNeedGloo) {
  EXPECT_EQ(
      choose_device({.gpus = 2, .local_rank = 5, .local_world_size = 6, .settings = {.backend = BackendChoice::kGloo}}),
      gpu(1));
  for (const BackendChoice backend : {BackendChoice::kByDevice, BackendChoice::kNccl}) try {
      choose_device({.gpus = 2, .local_rank = 5, .local_world_size = 6, .settings = {.backend = backend}});
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      for (const char* part : {"LOCAL_RANK is 5 (6 ranks on this machine)", "sees 2 GPUs", "--gpus-per-task=1", "gloo"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
    }
}

TEST(GpuConflict, NamesBothRanksTheGpuAndTheMachine) {
  const RankGpu gpu_of_both{{"GPU-8d1fd5d2-aaaa", "0000:1b:00.0"}, "node7"};
  const std::string mine = "rank 5 (LOCAL_RANK 1, process 12)", other = "rank 4 (LOCAL_RANK 0, process 11)";
  EXPECT_EQ(gpu_conflict(mine, mine, gpu_of_both), std::nullopt);
  const auto conflict = gpu_conflict(mine, other, gpu_of_both);
  ASSERT_TRUE(conflict);
  for (const std::string& part :
       {mine, other, std::string("0000:1b:00.0"), std::string("GPU-8d1fd5d2-aaaa"), std::string("machine node7"),
        std::string("--gpus-per-task=1"), std::string("--ddp_backend gloo")})
    EXPECT_NE(conflict->find(part), std::string::npos) << *conflict;
}

}  // namespace
}  // namespace megalith::parallel
