#include "megalith/observe/progress_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <regex>

#include "megalith/base/text.h"
#include "tests/observe/some_run.h"

namespace megalith::observe {
namespace {

using Seconds = std::chrono::seconds;
using testing::TempFolder;

const ProgressLog::Time kMorning = std::chrono::system_clock::from_time_t(1'800'000'000);

std::vector<std::string> lines_in(const std::filesystem::path& file) {
  std::vector<std::string> lines = split(text_of_file(file), '\n');
  lines.pop_back();  // after the last end of a line
  return lines;
}

// "… \tSaved checkpoint\t…" with so many operations.
std::string saved(const char* kind, const char* flops) {
  return std::string(kind) + "\tIteration: 1\tJob throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU" +
         "\tFloating-point operations: " + flops + "\tTokens (in billions): 0.00";
}

TEST(ProgressLog, AppendsMegatronsLines) {
  const TempFolder folder;
  const ProgressLog log(folder / "progress.txt", "17", 8);
  log.append("Starting job", kMorning);
  log.append("Deleted checkpoint\tIteration: 5", kMorning);
  const auto lines = lines_in(folder / "progress.txt");
  ASSERT_EQ(lines.size(), 2U);
  const std::regex form(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\tJob ID: 17\t# GPUs: 8\tStarting job)");
  EXPECT_TRUE(std::regex_match(lines[0], form)) << lines[0];
  EXPECT_TRUE(lines[1].ends_with("\t# GPUs: 8\tDeleted checkpoint\tIteration: 5")) << lines[1];
}

TEST(ProgressLog, FindsTheFirstJobOfItsSize) {
  const TempFolder folder;
  const ProgressLog small(folder / "progress.txt", "", 4), large(folder / "progress.txt", "", 8);
  small.append("Starting job", kMorning);
  small.append(saved("Saved checkpoint", "1.00e+18"), kMorning + Seconds(10));
  EXPECT_FALSE(large.first_job());
  large.append("Starting job", kMorning + Seconds(20));
  large.append(saved("Saving async checkpoint", "2.00e+18"), kMorning + Seconds(30));
  large.append("Starting job", kMorning + Seconds(40));
  ASSERT_TRUE(large.first_job());
  EXPECT_EQ(large.first_job()->time, kMorning + Seconds(20));
  EXPECT_EQ(large.first_job()->flops, 1e18);
  // Another size in between: the search starts again, with the operations of the last complete checkpoint.
  large.append("Saved async checkpoint\tIteration: 1", kMorning + Seconds(45));
  EXPECT_FALSE(small.first_job());
  small.append("Starting job", kMorning + Seconds(50));
  EXPECT_EQ(small.first_job()->time, kMorning + Seconds(50));
  EXPECT_EQ(small.first_job()->flops, 2e18);
  EXPECT_FALSE(large.first_job());
}

TEST(ProgressLog, PassesOverOtherLines) {
  const TempFolder folder;
  io::write_text_file(folder / "progress.txt", "hello\na\tb\tc\td\n\n\t\t# GPUs: 2\tStarting job\n");
  EXPECT_FALSE(ProgressLog(folder / "progress.txt", "", 2).first_job());
}

// A run that saves at steps 2 and 4 and keeps one checkpoint.
class ProgressLogRun : public ::testing::Test {
 protected:
  void save_at(int64_t step, const std::filesystem::path& below) {
    run_.state.global_step = step;
    run_.state.total_flos = 1e15 * static_cast<double>(step);
    run_.tell(callback_, &train::TrainerCallback::on_step_end, {{"consumed_samples", 1e6 * static_cast<double>(step)}});
    const auto folder = below / ("checkpoint-" + std::to_string(step));
    tell(&train::TrainerCallback::on_save_begin, folder);
    std::filesystem::create_directories(folder);
    if (step == 4) std::filesystem::remove_all(below / "checkpoint-2");
    tell(&train::TrainerCallback::on_save, folder);
  }
  void tell(SomeRun::Handler handler, const std::filesystem::path& folder) {
    train::TrainerEvent event{run_.settings, run_.state, run_.control, {}, folder, 0};
    (callback_.*handler)(event);
  }
  std::vector<std::string> kinds() const {
    std::vector<std::string> kinds;
    for (const std::string& line : lines_in(out_ / "progress.txt")) kinds.push_back(split(line, '\t')[3]);
    return kinds;
  }

  const TempFolder out_;
  SomeRun run_;
  ProgressLogCallback callback_{out_.path(), 2, 1000};
};

TEST_F(ProgressLogRun, WritesJobsSavesAndDeletions) {
  run_.begin(callback_);
  save_at(2, out_.path());
  save_at(3, out_ / "non_persistent");  // Megatron leaves these out
  save_at(4, out_.path());
  EXPECT_EQ(kinds(),
            (std::vector<std::string>{"Starting job", "Saved checkpoint", "Saved checkpoint", "Deleted checkpoint"}));
  const auto lines = lines_in(out_ / "progress.txt");
  const std::regex form(R"(.*\t# GPUs: 2\tSaved checkpoint\tIteration: 4\tJob throughput: [0-9.]+ TFLOP/s/GPU\t)"
                        R"(Cumulative throughput: [0-9.]+ TFLOP/s/GPU\tFloating-point operations: 4\.00e\+15\t)"
                        R"(Tokens \(in billions\): 4\.00)");
  EXPECT_TRUE(std::regex_match(lines[2], form)) << lines[2];
  EXPECT_TRUE(lines[3].ends_with("Deleted checkpoint\tIteration: 2")) << lines[3];
}

TEST_F(ProgressLogRun, BackgroundSavesHaveTwoLines) {
  run_.settings.save.in_background = true;
  run_.begin(callback_);
  save_at(2, out_.path());
  EXPECT_EQ(kinds(), (std::vector<std::string>{"Starting job", "Saving async checkpoint", "Saved async checkpoint"}));
  EXPECT_TRUE(lines_in(out_ / "progress.txt")[2].ends_with("\tSaved async checkpoint\tIteration: 2"));
}

TEST_F(ProgressLogRun, OtherRanksWriteNothing) {
  run_.state.is_world_process_zero = false;
  run_.begin(callback_);
  save_at(2, out_.path());
  EXPECT_FALSE(std::filesystem::exists(out_ / "progress.txt"));
}

}  // namespace
}  // namespace megalith::observe
