#include "megalith/layout/launcher_vpp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LauncherVppRequest vpp_request(int num_layers, int pp) {
  LauncherVppRequest r;
  r.num_layers = num_layers;
  r.pipeline_model_parallel_size = pp;
  return r;
}

TEST(LauncherVpp, LayersPerStageCountAccountedParts) {
  LauncherVppRequest r = vpp_request(14, 4);
  r.account_for_embedding_in_pipeline_split = r.account_for_loss_in_pipeline_split = true;
  r.num_layers_per_virtual_pipeline_stage = 2;
  EXPECT_EQ(resolve_launcher_vpp(r).vpp, 2);
}

TEST(LauncherVpp, OneVirtualStageMeansNone) {
  LauncherVppRequest r = vpp_request(16, 4);
  r.num_virtual_stages_per_pipeline_rank = 1;
  EXPECT_EQ(resolve_launcher_vpp(r).vpp, std::nullopt);
  EXPECT_FALSE(resolve_launcher_vpp(r).overlap_p2p_comm);
}

TEST(LauncherVpp, OverlapIsOptionalBeyondTwoRanks) {
  LauncherVppRequest r = vpp_request(16, 4);
  r.num_virtual_stages_per_pipeline_rank = 2;
  r.overlap_p2p_comm = false;
  EXPECT_EQ(resolve_launcher_vpp(r).vpp, 2);
  EXPECT_FALSE(resolve_launcher_vpp(r).overlap_p2p_comm);
  r.pipeline_model_parallel_size = 2;
  EXPECT_THAT(problems(r), ElementsAre(HasSubstr("without overlap_p2p_comm")));
}

TEST(LauncherVpp, UnevenLayersPassWhenTheyWillBeBalanced) {
  LauncherVppRequest r = vpp_request(15, 4);
  EXPECT_THAT(problems(r), ElementsAre(HasSubstr("15 layers")));
  r.uneven = UnevenSplit::kBalance;
  EXPECT_EQ(resolve_launcher_vpp(r).vpp, std::nullopt);
}

TEST(LauncherVpp, MistakesAreNamed) {
  LauncherVppRequest r = vpp_request(16, 4);
  r.num_layers_per_virtual_pipeline_stage = 0;
  EXPECT_THAT(problems(r), ElementsAre(HasSubstr("num_layers_per_virtual_pipeline_stage is 0")));
  r = vpp_request(16, 4);
  r.pipeline_model_parallel_layout = "Ex|L";
  EXPECT_THAT(problems(r), ElementsAre(HasSubstr("contains 'x'")));
  EXPECT_THROW(resolve_launcher_vpp(r), ConfigError);
}

}  // namespace
}  // namespace megalith::layout
