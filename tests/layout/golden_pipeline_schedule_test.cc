#include <gtest/gtest.h>

#include <sstream>

#include "megalith/base/error.h"
#include "megalith/layout/pipeline_schedule.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

json schedules() { return testing::golden_json("parallel/pipeline_schedule.json"); }

PipelineShape pipeline_shape(const json& c) {
  const auto vpp = optional_member<int>(c, "vpp");
  PipelineShape shape{.kind = PipelineShape::kind_for(c.at("pp"), vpp),
                      .pp = c.at("pp"),
                      .chunks = vpp.value_or(1),
                      .microbatches = c.at("m"),
                      .group_size = optional_member<int>(c, "group_size"),
                      .forward_only = c.value("forward_only", false)};
  EXPECT_EQ(name(shape.kind), c.value("schedule", std::string(name(shape.kind))));
  const std::string sync = c.value("sync", "");
  if (!sync.empty()) shape.sync = sync == "overlap" ? PipelineSync::kAligned : PipelineSync::kDefault;
  return shape;
}

std::string joined(const std::vector<PipelineAction>& actions, bool compute_only) {
  std::string text;
  for (const PipelineAction& a : actions) {
    if (compute_only && !a.is_compute()) continue;
    text += (text.empty() ? "" : " ") + a.text();
  }
  return text;
}

// The recorded operations without the messages in between: which of them there are and when is another matter.
std::string without_messages(const std::string& ops) {
  std::istringstream words(ops);
  std::string text;
  for (std::string word; words >> word;)
    if (word.find('(') == std::string::npos) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(GoldenPipelineSchedule, pipeline_schedule_json_cases) {
  for (const json& c : golden_list(schedules(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const PipelineShape shape = pipeline_shape(c);
    if (c.contains("table")) {
      std::string table;
      for (const auto& [m, chunk] : interleaved_order(shape))
        table += (table.empty() ? "" : " ") + std::to_string(m) + "." + std::to_string(chunk);
      EXPECT_EQ(table, c.at("table").get<std::string>());
    }
    const json& ranks = c.at("ranks");
    ASSERT_EQ(ranks.size(), static_cast<size_t>(shape.pp));
    for (int rank = 0; rank < shape.pp; ++rank) {
      SCOPED_TRACE(rank);
      const json& expected = ranks.at(rank);
      const RankSchedule schedule = pipeline_schedule(shape, rank);
      EXPECT_EQ(schedule.warmup, expected.at("warmup").get<int>());
      EXPECT_EQ(schedule.all_warmup, expected.at("all_warmup").get<bool>());
      EXPECT_EQ(joined(schedule.actions, true), expected.at("compute").get<std::string>());
      if (expected.contains("peak_in_flight")) {
        EXPECT_EQ(schedule.peak_in_flight(), expected.at("peak_in_flight").get<int>());
      }
      if (expected.contains("peak_per_chunk")) {
        EXPECT_EQ(schedule.peak_per_chunk(shape.chunks), expected.at("peak_per_chunk").get<std::vector<int>>());
      }
      if (c.contains("sync")) {
        EXPECT_EQ(joined(schedule.actions, false), without_messages(expected.at("ops").get<std::string>()));
      }
    }
  }
}

TEST(GoldenPipelineSchedule, pipeline_schedule_json_warmup) {
  for (const json& row : golden_list(schedules(), "warmup")) {
    SCOPED_TRACE(row.dump());
    const int vpp = row.at(1);
    PipelineShape shape{.kind = PipelineShape::kind_for(row.at(0), vpp == 0 ? std::nullopt : std::optional(vpp)),
                        .pp = row.at(0),
                        .chunks = std::max(1, vpp),
                        .microbatches = row.at(2),
                        .group_size = row.at(3).get<int>(),
                        .forward_only = row.at(4).get<int>() != 0};
    std::vector<int> warmup;
    for (int rank = 0; rank < shape.pp; ++rank) warmup.push_back(pipeline_schedule(shape, rank).warmup);
    EXPECT_EQ(warmup, row.at(5).get<std::vector<int>>());
  }
}

TEST(GoldenPipelineSchedule, pipeline_schedule_json_invalid) {
  for (const json& c : golden_list(schedules(), "invalid")) {
    SCOPED_TRACE(c.dump());
    // The others are about message options, which a schedule does not know.
    const auto code = c.at("code").get<std::string>();
    if (code != "group_size_range" && code != "last_group_too_small") continue;
    EXPECT_THROW(pipeline_schedule(pipeline_shape(c), 0), ConfigError);
  }
}

}  // namespace
}  // namespace megalith::layout
