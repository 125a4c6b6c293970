#include "tests/cli/preview_support.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::cli {
namespace {

using layout::golden_inputs;
using layout::golden_list;
using nlohmann::json;

json microbatches_file() { return testing::golden_json("parallel/microbatches.json"); }

std::vector<std::string> batch_words(const json& cfg) {
  std::vector<std::string> words{"batch", "--json"};
  for (const char* key : {"global_batch_size", "micro_batch_size", "data_parallel_size"})
    if (!cfg.at(key).is_null()) words.push_back(std::string(key) + "=" + cfg.at(key).dump());
  if (cfg.value("decrease_batch_size_if_needed", false)) words.emplace_back("--decrease_batch_size_if_needed");
  if (cfg.at("rampup_batch_size").is_null()) return words;
  words.emplace_back("--rampup_batch_size");
  for (const json& number : cfg.at("rampup_batch_size")) words.push_back(number.dump());
  return words;
}

TEST(GoldenPreviewBatch, microbatches_json_cases) {
  for (const json& c : golden_list(microbatches_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    std::vector<std::string> words = batch_words(c.at("cfg"));
    std::string consumed;
    for (const json& update : c.value("updates", json::array()))
      consumed += (consumed.empty() ? "" : ",") + update.at(0).dump();
    if (!consumed.empty()) words.insert(words.end(), {"--consumed", consumed});
    const Answer answer = preview(words);
    const json shown = answer.json();
    EXPECT_EQ(shown.at("cfg"), c.at("cfg"));
    EXPECT_EQ(shown.at("initial"), c.at("initial"));
    // The preview always checks, as a run does.
    if (c.contains("updates") && c.value("consistency_check", false)) {
      EXPECT_EQ(shown.at("updates"), c.at("updates"));
    }
  }
}

TEST(GoldenPreviewBatch, microbatches_json_walks) {
  for (const json& c : golden_list(microbatches_file(), "walks")) {
    SCOPED_TRACE(golden_inputs(c));
    const json& walk = c.at("walk");
    std::vector<std::string> words = batch_words(c.at("cfg"));
    words.push_back("--samples=" + std::to_string(walk.back().at(0).get<int64_t>() + 1));
    const Answer answer = preview(words);
    ASSERT_EQ(answer.exit_code, kDone) << answer.error;
    EXPECT_EQ(answer.json().at("walk"), walk);
  }
}

TEST(GoldenPreviewBatch, microbatches_json_invalid) {
  for (const json& c : golden_list(microbatches_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    const Answer answer = preview(batch_words(c.at("cfg")));
    EXPECT_NE(answer.error, "") << answer.out;
  }
}

TEST(PreviewBatch, data_parallel_size_follows_from_the_world) {
  const json shown = preview("batch --world-size 64 --tp 8 --micro_batch_size 1 --global_batch_size 128 --json").json();
  EXPECT_EQ(shown.at("cfg").at("data_parallel_size"), 8);
  EXPECT_EQ(shown.at("initial"), json::parse("[16,128,128]"));
  EXPECT_FALSE(shown.contains("walk"));
}

TEST(PreviewBatch, names_of_hugging_face_give_the_same) {
  const json shown =
      preview("batch --world-size 4 --per_device_train_batch_size 2 --gradient_accumulation_steps 3 --json").json();
  EXPECT_EQ(shown.at("initial"), json::parse("[3,24,24]"));
}

TEST(PreviewBatch, schedule_in_tokens) {
  const Answer answer = preview({"batch", "--dp=8", "--micro_batch_size=2", "--step_batch_size_schedule",
                                 "0:16 2.4B:320", "--seq_length", "2048", "--json"});
  ASSERT_EQ(answer.exit_code, kDone) << answer.error;
  // 2.4e9 / 2048 = 1171875 samples: 73243 steps of 16 go beyond it.
  EXPECT_EQ(answer.json().at("phases"), json::parse("[[0,1,16,16,73243],[1171888,20,320,320,null]]"));
  EXPECT_EQ(answer.json().at("walk").size(), 73244);
}

TEST(PreviewBatch, phases_agree_with_the_walk_and_end_with_the_samples) {
  const json shown =
      preview(
          "batch --dp 2 --micro_batch_size 2 --global_batch_size 64 --rampup_batch_size 16 16 500 --samples 800 --json")
          .json();
  int64_t steps = 0;
  for (const json& phase : shown.at("phases")) {
    EXPECT_EQ(shown.at("walk").at(static_cast<size_t>(steps)).at(0), phase.at(0));
    steps += phase.at(4).get<int64_t>();
  }
  EXPECT_EQ(steps, std::ssize(shown.at("walk")));
}

TEST(PreviewBatch, table_of_phases) {
  const std::string out =
      preview(
          "batch --dp 8 --micro_batch_size 1 --global_batch_size 64 --rampup_batch_size 16 16 300 --train_samples 1000")
          .out;
  EXPECT_TRUE(contains(out, "             0           7            16              2\n")) << out;
  EXPECT_TRUE(contains(out, "1000 samples take")) << out;
}

TEST(PreviewBatch, a_long_walk_is_cut_and_says_so) {
  const Answer answer = preview("batch --dp 1 --micro_batch_size 1 --samples 1000000 --json");
  EXPECT_TRUE(answer.json().at("walk_cut").get<bool>());
  EXPECT_TRUE(contains(answer.err, "--samples")) << answer.err;
}

TEST(PreviewBatch, changes_that_no_run_reaches_are_left_out) {
  const json all_16 = json::parse("[[0,16,16,16,null]]");
  const std::string ramp = "batch --dp 1 --micro_batch_size 1 --global_batch_size 64 --rampup_batch_size 16 16 ";
  EXPECT_EQ(preview(ramp + "9223372036854775807 --json").json().at("phases"), all_16);
  const Answer schedule =
      preview({"batch", "--dp=1", "--micro_batch_size=1", "--step_batch_size_schedule", "0:16 2000T:32", "--json"});
  EXPECT_EQ(schedule.json().at("phases"), all_16);
}

TEST(PreviewBatch, a_ramp_through_an_impossible_size_is_shown_and_fails) {
  const Answer refused =
      preview("batch --dp 2 --micro_batch_size 2 --global_batch_size 12 --rampup_batch_size 6 2 30 --json");
  EXPECT_EQ(refused.json().at("walk"), json::parse("[[0,null]]"));
  EXPECT_TRUE(contains(refused.error, "a global batch of 6")) << refused.error;
  const Answer stuck = preview(
      "batch --dp 8 --micro_batch_size 1 --global_batch_size 16 --rampup_batch_size 4 4 40 "
      "--decrease_batch_size_if_needed");
  EXPECT_TRUE(contains(stuck.error, "rampup_batch_size")) << stuck.error;
}

TEST(PreviewBatch, errors_name_the_setting) {
  EXPECT_TRUE(contains(preview("batch --global_batch_size 8").error, "world_size"));
  EXPECT_TRUE(contains(preview("batch --world-size 8 --dp 4").error, "dp 4"));
  EXPECT_TRUE(contains(preview("batch --dp 0").error, "dp is 0"));
  EXPECT_TRUE(contains(preview("batch --dp 2 --samples 0").error, "samples is 0"));
  EXPECT_TRUE(contains(preview("batch --dp 2 --consumed x").error, "consumed"));
  EXPECT_TRUE(contains(preview("batch --world-size 12 --tp 8").error, "tp*pp*cp"));
  const std::string both =
      preview("batch --dp 2 --micro_batch_size 1 --global_batch_size 8 --gradient_accumulation_steps 2").error;
  EXPECT_TRUE(contains(both, "gradient_accumulation_steps")) << both;
}

}  // namespace
}  // namespace megalith::cli
