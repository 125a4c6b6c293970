// Files of texts and histograms, and histograms for TensorBoard.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"
#include "megalith/observe/record_files.h"
#include "megalith/observe/records/step_lines.h"
#include "megalith/observe/tensorboard.h"
#include "megalith/optim/histograms.h"
#include "megalith/train/samples/text_samples.h"
#include "tests/observe/decoded_events.h"
#include "tests/observe/some_run.h"
#include "tests/support/temp_folder.h"

namespace megalith::observe {
namespace {

using nlohmann::json;
using testing::TempFolder;

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::vector<json> lines;
  for (const std::string& line : split(text_of_file(path), '\n'))
    if (!line.empty()) lines.push_back(json::parse(line));
  return lines;
}

void tell_samples(SomeRun& run, train::TrainerCallback& callback, int64_t step, const train::TextSamples& samples) {
  run.state.global_step = step;
  train::TrainerEvent event{run.settings, run.state, run.control};
  event.samples = &samples;
  callback.on_samples(event);
}

TEST(SamplesFile, HoldsTextsAndWhatIsInTheLoss) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = true;
  SamplesFileCallback callback(folder / "out");
  run.begin(callback);
  tell_samples(run, callback, 10,
               {.generated = {{"Once", " upon <b>\n", true}},
                .trained = {{.spans = {{"Q", false}, {"A\xff", true}}, .tokens = 3, .loss_tokens = 2, .padding = 1}}});
  const std::vector<json> lines = lines_of(folder / "out" / "samples.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("step"), 10);
  EXPECT_GT(lines[0].at("time").get<double>(), 1.7e9);
  EXPECT_EQ(lines[0].at("generated"), json::parse(R"([{"prompt":"Once","text":" upon <b>\n","ended":true}])"));
  EXPECT_EQ(
      lines[0].at("trained"),
      json::parse(R"([{"spans":[["Q",false],["A\ufffd",true]],"tokens":3,"loss_tokens":2,"padding":1,"left_out":0}])"));
}

TEST(StepLines, KeepsWhatAResumedRunDoesNotRepeat) {
  const TempFolder folder;
  {
    StepLines lines(folder / "x.jsonl", 0);
    for (const char* line : {R"({"step":1})", R"({"step":2})", R"({"step":3})"}) lines.append(line);
  }
  StepLines(folder / "x.jsonl", 2).append(R"({"step":3,"again":true})");
  EXPECT_EQ(text_of_file(folder / "x.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
}

TEST(SamplesFile, AResumedRunKeepsWhatItDoesNotRepeat) {
  const TempFolder folder;
  {
    SomeRun run;
    run.state.is_world_process_zero = true;
    SamplesFileCallback callback(folder.path());
    run.begin(callback);
    for (const int64_t step : {10, 20, 30}) tell_samples(run, callback, step, {.generated = {{"a", "first", false}}});
  }
  SomeRun run;
  run.state.is_world_process_zero = true;
  run.state.global_step = 20;
  SamplesFileCallback callback(folder.path());
  run.begin(callback);
  tell_samples(run, callback, 30, {.generated = {{"a", "second", false}}});
  const std::vector<json> lines = lines_of(folder / "samples.jsonl");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].at("generated").at(0).at("text"), "first");
  EXPECT_EQ(lines[2].at("generated").at(0).at("text"), "second");
}

TEST(SamplesFile, OtherRanksWriteNothing) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = false;
  SamplesFileCallback callback(folder / "out");
  run.begin(callback);
  tell_samples(run, callback, 1, {});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

// -3 (bin 6), two of -0.9 (bin -1), one zero, 1.1 (bin 0), 1.6 (bin 2).
optim::Histogram some_histogram() {
  return {.zeros = 1, .negative = {-1, {2, 0, 0, 0, 0, 0, 0, 1}}, .positive = {0, {1, 0, 1}}};
}

TEST(HistogramsFile, HoldsBinsByPart) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = true;
  HistogramsFileCallback callback(folder.path());
  run.begin(callback);
  run.state.global_step = 5;
  const optim::Histograms histograms{{{"layers.0.mlp", some_histogram(), {.non_finite = 2}}}};
  train::TrainerEvent event{run.settings, run.state, run.control};
  event.histograms = &histograms;
  callback.on_histograms(event);
  const std::vector<json> lines = lines_of(folder / "histograms.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("step"), 5);
  EXPECT_EQ(lines[0].at("weights"),
            json::parse(R"([{"part":"layers.0.mlp","zeros":1,"non_finite":0,"negative":[-1,2,0,0,0,0,0,0,1],)"
                        R"("positive":[0,1,0,1]}])"));
  EXPECT_EQ(lines[0].at("gradients"),
            json::parse(R"([{"part":"layers.0.mlp","zeros":0,"non_finite":2,"negative":[],"positive":[]}])"));
}

TEST(TensorboardHistograms, HaveAscendingBuckets) {
  const EventFile::Buckets buckets = buckets_of(some_histogram());
  ASSERT_EQ(buckets.limits.size(), buckets.counts.size());
  for (size_t i = 1; i < buckets.limits.size(); ++i) EXPECT_LT(buckets.limits[i - 1], buckets.limits[i]);
  EXPECT_EQ(buckets.limits.front(), -3);
  EXPECT_EQ(buckets.limits.back(), 1.75);
  EXPECT_EQ(buckets.least, -3.5);
  EXPECT_EQ(buckets.most, 1.75);
  double count = 0;
  for (const double each : buckets.counts) count += each;
  EXPECT_EQ(count, 6);
}

TEST(TensorboardHistograms, AreWritten) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = true;
  TensorboardCallback callback(folder.path(), {});
  run.begin(callback);
  run.state.global_step = 7;
  const optim::Histograms histograms{{{"layers.0.mlp", some_histogram(), some_histogram()}}};
  train::TrainerEvent event{run.settings, run.state, run.control};
  event.histograms = &histograms;
  callback.on_histograms(event);
  const std::vector<std::string> records =
      records_of(text_of_file(std::filesystem::directory_iterator(folder.path())->path()));
  const DecodedMessage last(records.back());
  EXPECT_EQ(last.numbers.at(2), 7U);  // Event.step
  const DecodedMessage value = last.message(5).message(1);
  EXPECT_EQ(value.bytes.at(1), "gradients/layers.0.mlp");
  const DecodedMessage histogram = value.message(5);
  EXPECT_EQ(histogram.as_double(1), -3.5);
  EXPECT_EQ(histogram.as_double(3), 6);
  EXPECT_EQ(histogram.bytes.at(6).size(), histogram.bytes.at(7).size());
  EXPECT_EQ(histogram.bytes.at(6).size() % 8, 0U);
}

}  // namespace
}  // namespace megalith::observe
