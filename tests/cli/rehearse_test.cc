// `megalith rehearse` and `megalith plan --rehearse` in this process.
#include <map>

#include "megalith/io/file_io.h"
#include "tests/cli/preview_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::cli {
namespace {

constexpr const char* kSmall = " --use_cpu --cutoff_len 32 --per_device_train_batch_size 1 --steps 1";

TEST(Rehearse, one_rank_of_many) {
  const Answer answer =
      answer_of(run_rehearse,
                "--world-size 1024 --tp 2 --pp 2 --rank 513 --gpu h100-80g --use_distributed_optimizer true"
                " --output_dir out --resume_from_checkpoint true" +
                    std::string(kSmall) + golden_model());
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  for (const char* part : {"rank 513 of 1024 (tp 1, pp 1, cp 0, dp 0)", "links of h100-80g, 8 per node", "rehearsed",
                           "planned", "exposed communication", "pipeline bubble", "peak memory", "pp_forward"})
    EXPECT_TRUE(contains(answer.out, part)) << part << "\n" << answer.out;
  EXPECT_TRUE(contains(answer.err, "without effect: --output_dir, --resume_from_checkpoint")) << answer.err;
  EXPECT_FALSE(contains(answer.out, "loss"));
}

TEST(Rehearse, gives_json_and_a_trace) {
  const testing::TempFolder folder;
  const std::string trace = (folder / "trace.json").string();
  const auto result =
      answer_of(run_rehearse, "--world-size 4 --tp 2 --stage 0 --json --trace " + trace + kSmall + golden_model())
          .json();
  EXPECT_EQ(result.at("rank"), 0);
  EXPECT_GT(result.at("rehearsed").at("peak"), 0);
  EXPECT_GT(result.at("planned").at("step_s"), 0);
  EXPECT_FALSE(result.at("communication").empty());
  EXPECT_TRUE(std::filesystem::exists(trace));
}

// One step more than without: the profiled one is not measured, and neither its operations nor its memory count.
TEST(Rehearse, profiles_a_step_of_its_own) {
  const testing::TempFolder folder;
  const std::string line =
      "--world-size 4 --tp 2 --pp 2 --stage 1 --gradient_accumulation_steps 2" + std::string(kSmall) + golden_model();
  const std::filesystem::path file = folder / "new" / "profile.json";
  const Answer answer = answer_of(run_rehearse, line + " --profile " + file.string());
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  for (const std::string& part : {"profile of one more step: " + file.string(),
                                  std::string("costliest operators of a step"), std::string("aten::mm")})
    EXPECT_TRUE(contains(answer.out, part)) << part << "\n" << answer.out;
  std::map<std::string, int> names;
  const auto trace = nlohmann::json::parse(io::read_text_file(file, 1 << 27));
  for (const auto& one : trace.at("traceEvents"))
    if (one.at("ph") == "X") ++names[one.at("name").get<std::string>()];
  EXPECT_EQ(names["forward-compute 0.0"], 1) << "one step";
  EXPECT_EQ(names["backward-compute 1.0"], 1);
  EXPECT_GT(names["aten::mm"], 0);

  const auto plain = answer_of(run_rehearse, line + " --json").json(),
             profiled = answer_of(run_rehearse, line + " --json --profile " + file.string()).json();
  EXPECT_FALSE(plain.contains("profile"));
  EXPECT_FALSE(profiled.at("profile").at("operators").empty());
  EXPECT_EQ(profiled.at("communication"), plain.at("communication"));
  EXPECT_EQ(profiled.at("rehearsed").at("peak"), plain.at("rehearsed").at("peak"));
}

TEST(Rehearse, says_what_is_wrong) {
  const auto error = [](const std::string& line) {
    return answer_of(run_rehearse, line + kSmall + golden_model()).error;
  };
  EXPECT_TRUE(contains(error("--tp 2"), "world_size"));
  EXPECT_TRUE(contains(error("--world-size 4 --tp 2 --rank 4"), "rank is 4; in a world of 4 it must be from 0 to 3"));
  EXPECT_TRUE(contains(error("--world-size 4 --pp 2 --stage 2"), "stage is 2; with pp 2 it must be from 0 to 1"));
  EXPECT_TRUE(contains(error("--world-size 6 --tp 4"), "6"));
  EXPECT_TRUE(contains(error("--world-size 4 --stage 0 --rank 0"), "both given"));
  EXPECT_TRUE(contains(error("--world-size 2 --gpu v100"), "not a known GPU kind"));
  EXPECT_TRUE(contains(answer_of(run_rehearse, "--world-size 2" + std::string(kSmall)).error, "--model DIR"));
  EXPECT_TRUE(contains(answer_of(run_rehearse, "--help").out, "--world_size"));
}

TEST(Rehearse, plan_checks_its_layouts) {
  const std::string line =
      "--gpus 4 --gpu cpu --best 2 --cutoff_len 32 --global_batch_size 8 --use_cpu --bf16 false"
      " --rehearse" +
      golden_model();
  const Answer answer = answer_of(run_plan, line);
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  EXPECT_TRUE(contains(answer.out, "rehearsed on this machine")) << answer.out;
  EXPECT_FALSE(contains(answer.out, "not rehearsed")) << answer.out;
  const auto result = answer_of(run_plan, line + " --json").json();
  ASSERT_EQ(result.at("rehearsals").size(), result.at("best").size());
  for (size_t i = 0; i < result.at("best").size(); ++i)
    EXPECT_EQ(result.at("rehearsals")[i].at("stage"), result.at("best")[i].at("memory").at("pp_rank"));
  EXPECT_TRUE(contains(answer_of(run_plan, line + " --simulate").error, "choose one"));
}

}  // namespace
}  // namespace megalith::cli
