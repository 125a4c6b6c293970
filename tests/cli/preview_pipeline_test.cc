#include "tests/cli/preview_support.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"

namespace megalith::cli {
namespace {

using nlohmann::json;
using testing::expect_contains;

TEST(GoldenPreviewPipeline, pipeline_schedule_json) {
  for (const json& c : layout::golden_list(testing::golden_json("parallel/pipeline_schedule.json"), "cases")) {
    SCOPED_TRACE(layout::golden_inputs(c));
    if (c.contains("sync")) continue;                 // actions of the engine, which are not shown
    if (c.value("vpp", json()) == json(1)) continue;  // the parser takes vpp 1 for no virtual stages
    std::string words = fmt::format("pipeline --json --pp {} --microbatches {}", c.at("pp").dump(), c.at("m").dump());
    if (!c.at("vpp").is_null()) words += " --vpp " + c.at("vpp").dump();
    if (c.contains("group_size")) words += " --microbatch_group_size_per_vp_stage " + c.at("group_size").dump();
    if (c.at("forward_only")) words += " --forward_only";
    const Answer answer = preview(words);
    ASSERT_EQ(answer.exit_code, 0) << answer.error;
    const json shown = answer.json();
    for (const char* key : {"schedule", "pp", "vpp", "m", "table", "forward_only"})
      EXPECT_EQ(shown.value(key, json()), c.value(key, json())) << key;
    for (size_t rank = 0; rank < c.at("ranks").size(); ++rank)
      for (const char* key : {"warmup", "all_warmup", "compute", "peak_in_flight", "peak_per_chunk"})
        EXPECT_EQ(shown.at("ranks").at(rank).value(key, json()), c.at("ranks").at(rank).value(key, json())) << key;
  }
}

TEST(PreviewPipeline, DrawsTheTimeline) {
  const Answer answer = preview("pipeline --pp 2 --microbatches 4");
  ASSERT_EQ(answer.exit_code, 0) << answer.error;
  expect_contains(answer.out, "1f1b, 2 pipeline ranks, 4 micro-batches");
  expect_contains(answer.out, "rank   0 |F0  F1  ........B0      F2  B1      F3  B2      ....B3      |");
  expect_contains(answer.out, "rank   1 |....F0  B0      F1  B1      F2  B2      F3  B3      ........|");
  expect_contains(answer.out, "bubble: 20.0 %");  // (p-1)·3 of 4·3 + (p-1)·3
  expect_contains(answer.out, "  rank   0    2\n  rank   1    1\n");
}

TEST(PreviewPipeline, ZeroBubbleShowsItsWeightGradients) {
  const Answer answer = preview("pipeline --pp 2 --microbatches 4 --schedule zero_bubble");
  ASSERT_EQ(answer.exit_code, 0) << answer.error;
  expect_contains(answer.out, "W3");
  expect_contains(answer.out, "bubble: 7.7 %");  // (p-1)·1 of 4·3 + (p-1)·1
}

TEST(PreviewPipeline, NamesWhatIsWrong) {
  expect_contains(preview("pipeline --pp 4").error, "--microbatches");
  expect_contains(preview("pipeline --pp 4 --vpp 2 --microbatches 6").error, "use 8 micro-batches");
  expect_contains(preview("pipeline --pp 4 --microbatches 8 --schedule gpipe").error, "1f1b, interleaved");
  expect_contains(preview("pipeline --pp 4 --microbatches 0").error, "0 micro-batches");
  expect_contains(preview("pipeline --pp 4 --microbatches 99999999").error, "too many");
  expect_contains(preview("pipeline --pp 2 --microbatches 4 --backward_cost=-1").error, "backward_cost");
}

}  // namespace
}  // namespace megalith::cli
