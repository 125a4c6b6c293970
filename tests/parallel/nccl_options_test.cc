#include "megalith/parallel/nccl_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/comm/backend/nccl_settings.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::parallel {
namespace {

using testing::expect_error;

TEST(NcclOptions, GroupsInsideLayersAndBetweenStagesHaveHighPriority) {
  const comm::NcclSettings settings = nccl_settings({});
  for (const char* name : {"tp", "cp", "ep", "pp_forward", "pp_backward"})
    EXPECT_TRUE(settings.at(name).high_priority_stream) << name;
  EXPECT_FALSE(settings.contains("dp_cp"));
  EXPECT_FALSE(settings.at("tp").max_ctas.has_value());
}

TEST(NcclOptions, TheUsersListReplacesTheDefault) {
  const std::vector<std::string> words{"ep_dp", "pp"};
  const comm::NcclSettings settings =
      nccl_settings({.high_priority_groups = nccl_groups_named(words, "high_priority_stream_groups")});
  EXPECT_FALSE(settings.contains("tp"));
  EXPECT_TRUE(settings.at("edp").high_priority_stream);
  EXPECT_TRUE(settings.at("pp_backward").high_priority_stream);
  const std::vector<std::string> unknown{"tensor"};
  expect_error<ConfigError>([&] { nccl_groups_named(unknown, "high_priority_stream_groups"); },
                            {"high_priority_stream_groups", "\"tensor\"", "tp"});
}

TEST(NcclOptions, AFileTunesGroups) {
  const comm::NcclSettings settings =
      parse_nccl_config("tp: {cga_cluster_size: 4, max_ctas: 32, min_ctas: 8}\ndp: {net_name: Socket}\n", "n.yaml");
  EXPECT_EQ(settings.at("tp").max_ctas, 32);
  EXPECT_EQ(settings.at("tp").min_ctas, 8);
  EXPECT_EQ(settings.at("tp").cga_cluster_size, 4);
  EXPECT_EQ(settings.at("dp").net_name, "Socket");
}

TEST(NcclOptions, AFileThatCannotBeUsedIsNamed) {
  const auto parse = [](const char* text) { return [text] { parse_nccl_config(text, "n.yaml"); }; };
  expect_error<ConfigError>(parse("[tp]"), {"n.yaml", "group names"});
  expect_error<ConfigError>(parse("tp: 3"), {"n.yaml", "\"tp\""});
  expect_error<ConfigError>(parse("tp: {max_ctas: many}"), {"n.yaml", "max_ctas", "\"tp\"", "whole number"});
  expect_error<ConfigError>(parse("tp: {max_cta: 3}"), {"max_cta", "max_ctas"});
  expect_error<ConfigError>(parse("tp: {min_ctas: 8, max_ctas: 4}"), {"min_ctas 8", "max_ctas 4"});
  expect_error<ConfigError>(parse("tp: {max_ctas: 4"), {"n.yaml:"});
  expect_error<ConfigError>(parse("tpp: {max_ctas: 4}"), {"\"tpp\"", "tp_pp"});
  expect_error<ConfigError>([] { nccl_settings({.config_file = "/nowhere/n.yaml"}); },
                            {"nccl_communicator_config_path", "/nowhere/n.yaml"});
}

TEST(NcclOptions, OverlappedCollectivesLeaveTheGpuToProducts) {
  const comm::NcclSettings settings = nccl_settings({.overlapped_tp = true});
  EXPECT_EQ(settings.at("tp").max_ctas, kOverlappedCtas);
  EXPECT_TRUE(settings.at("tp").high_priority_stream);
  EXPECT_FALSE(settings.at("cp").max_ctas.has_value());
  const testing::TempFolder folder;
  std::ofstream(folder / "n.yaml") << "tp: {min_ctas: 2}\n";
  EXPECT_FALSE(
      nccl_settings({.config_file = (folder / "n.yaml").string(), .overlapped_tp = true}).at("tp").max_ctas.has_value())
      << "the user's settings hold alone";
}

TEST(NcclOptions, SharpIsForTheReductionOfGradients) {
  const comm::NcclSettings settings = nccl_settings({.sharp = true});
  EXPECT_TRUE(settings.at("intra_dp_cp").sharp);
  EXPECT_FALSE(settings.at("tp").sharp);
}

}  // namespace
}  // namespace megalith::parallel
