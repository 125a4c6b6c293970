#include "megalith/observe/dashboard/metrics_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ctime>

#include "megalith/observe/dashboard/metrics_line.h"
#include "tests/observe/dashboard/run_folder.h"

namespace megalith::observe {
namespace {

using Entries = std::vector<std::pair<std::string, double>>;

std::optional<Entries> parsed(std::string_view line) {
  MetricsLine reader;
  if (!reader.parse(line)) return std::nullopt;
  Entries entries;
  for (const auto& [name, value] : reader.entries()) entries.emplace_back(name, value);
  return entries;
}

TEST(MetricsLine, ReadsNumbersByName) {
  EXPECT_EQ(parsed(R"({"step":10,"loss":2.345678901234,"lr":1e-4,"n":-3})"),
            (Entries{{"step", 10}, {"loss", 2.345678901234}, {"lr", 1e-4}, {"n", -3}}));
  EXPECT_EQ(parsed("  { \"step\" : 1 , \"a\" : 2 } \r"), (Entries{{"step", 1}, {"a", 2}}));
  EXPECT_EQ(parsed("{}"), Entries{});
  EXPECT_EQ(parsed(R"({"a":true,"b":false})"), (Entries{{"a", 1}, {"b", 0}}));
}

TEST(MetricsLine, ValuesThatAreNotNumbersAreLeftOutOrNan) {
  const auto entries = parsed(R"({"step":1,"a":null,"b":"text","c":[1,2],"d":{"e":1},"f":2})");
  ASSERT_TRUE(entries.has_value());
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_TRUE(std::isnan((*entries)[1].second));
  EXPECT_EQ((*entries)[2], (std::pair<std::string, double>{"f", 2}));
  for (const char* python : {R"({"a":NaN})", R"({"a":Infinity})", R"({"a":-Infinity})", R"({"a":1e999})"}) {
    const auto read = parsed(python);
    ASSERT_TRUE(read.has_value()) << python;
    EXPECT_TRUE(std::isnan(read->at(0).second)) << python;
  }
}

TEST(MetricsLine, NamesOfAnyKindSurvive) {
  EXPECT_EQ(parsed(R"({"\u003cscript\u003e":1,"a\"b":2,"größe":3})"),
            (Entries{{"<script>", 1}, {"a\"b", 2}, {"größe", 3}}));
}

TEST(MetricsLine, RefusesWhatIsNotAnObject) {
  for (const char* bad : {"", "x", "[1]", "1", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1", "{\"a\":1}}", "{\"a\":1}x",
                          "{a:1}", "{\"a\":.5}", "{\"a\":nul}", "{\"a\xff\":1}", "{\"a\":1,}", "{\"a\":inf}", "null"})
    EXPECT_FALSE(parsed(bad).has_value()) << bad;
  EXPECT_FALSE(parsed(std::string(100'000, '[')).has_value());
}

class Reader : public ::testing::Test {
 protected:
  double last(const std::string& name) const {
    const auto* series = reader_.find(name);
    return series == nullptr || series->values.buckets().empty() ? std::nan("") : series->values.buckets().back().max;
  }
  RunFolder folder_;
  MetricsReader reader_{folder_.path()};
};

TEST_F(Reader, SkipsAndCountsMalformedLines) {
  folder_.write("metrics.jsonl",
                "{\"step\":1,\"loss\":3}\nnot json\n{\"loss\":5}\n{\"step\":\"2\",\"loss\":5}\n{\"step\":null}\n\n"
                "{\"step\":2,\"loss\":2}\n{\"step\":3,\"lo");
  EXPECT_TRUE(reader_.update());
  EXPECT_EQ(reader_.lines(), 2);
  EXPECT_EQ(reader_.malformed(), 5);
  EXPECT_EQ(last("loss"), 2);
  folder_.append("metrics.jsonl", "ss\":1}\n");
  EXPECT_TRUE(reader_.update());
  EXPECT_EQ(reader_.lines(), 3);
  EXPECT_EQ(last("loss"), 1);
  EXPECT_FALSE(reader_.update());
}

TEST_F(Reader, LinesWithOtherKeysInOtherOrders) {
  folder_.write("metrics.jsonl",
                "{\"step\":1,\"a\":1,\"b\":2}\n{\"b\":3,\"step\":2,\"a\":4}\n{\"step\":2,\"eval_loss\":7}\n{\"step\":3,"
                "\"b\":5}\n");
  reader_.update();
  EXPECT_EQ(last("a"), 4);
  EXPECT_EQ(last("b"), 5);
  EXPECT_EQ(last("eval_loss"), 7);
  EXPECT_EQ(reader_.series().size(), 3U);
  EXPECT_EQ(reader_.find("b")->values.points(), 3);
}

TEST_F(Reader, AResumedRunsFileReplacesTheOldOne) {
  folder_.write("metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":9}\nbad\n");
  reader_.update();
  folder_.write("new", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2.5}\n");
  std::filesystem::rename(folder_ / "new", folder_ / "metrics.jsonl");
  EXPECT_TRUE(reader_.update());
  EXPECT_EQ(reader_.lines(), 2);
  EXPECT_EQ(reader_.malformed(), 0);
  EXPECT_EQ(last("loss"), 2.5);
}

TEST_F(Reader, TooManyNamesAreCountedNotKept) {
  std::string line = "{\"step\":1";
  for (size_t i = 0; i < MetricsReader::kMostSeries + 10; ++i) line += ",\"k" + std::to_string(i) + "\":1";
  line += ",\"" + std::string(MetricsReader::kMostNameBytes + 1, 'n') + "\":1}\n";
  folder_.write("metrics.jsonl", line);
  reader_.update();
  EXPECT_EQ(reader_.series().size(), MetricsReader::kMostSeries);
  EXPECT_EQ(reader_.left_out(), 11);
}

// Every step of a part, whatever the whole was merged to; lines of one step stay together, and the end is found though
// later lines follow.
TEST_F(Reader, APartIsReadAgainInFull) {
  std::string text = "broken\n";
  for (int step = 1; step <= 10'000; ++step) {
    text += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, step * 0.5);
    if (step % 1'000 == 0) text += fmt::format("{{\"step\":{},\"eval_loss\":{}}}\n", step, step);
  }
  folder_.write("metrics.jsonl", text);
  reader_.update();
  EXPECT_FALSE(reader_.find("loss")->values.exact());
  for (const int from : {1, 1024, 1025, 4999, 9000}) {
    const MetricCurves part = reader_.part(from, from + 1000);
    const auto* loss = part.find("loss");
    ASSERT_NE(loss, nullptr) << from;
    EXPECT_TRUE(loss->values.exact());
    ASSERT_EQ(loss->values.points(), 1001) << from;
    EXPECT_EQ(loss->values.buckets().front().first_x, from);
    EXPECT_EQ(loss->values.buckets().front().mean(), from * 0.5);
    EXPECT_EQ(loss->values.last_x(), from + 1000);
    ASSERT_NE(part.find("eval_loss"), nullptr) << from;
  }
  EXPECT_TRUE(reader_.part(10'001, 20'000).series().empty());
  EXPECT_TRUE(reader_.part(20, 10).series().empty());
  // New lines belong to it; a file that was replaced is read where its lines are now.
  folder_.append("metrics.jsonl", "{\"step\":10001,\"loss\":7}\n");
  reader_.update();
  EXPECT_EQ(reader_.part(10'000, 10'001).find("loss")->values.points(), 2);
  folder_.write("metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":4}\n");
  reader_.update();
  EXPECT_EQ(reader_.part(2, 2).find("loss")->values.last_y(), 4);
}

TEST_F(Reader, AMillionLinesInLittleMemory) {
  std::string text;
  constexpr int kLines = 1'000'000;
  text.reserve(size_t{280} << 20);
  for (int i = 1; i <= kLines; ++i) {
    const double loss = 2 + 8 / std::sqrt(i) + (i == 654'321 ? 40 : 0);
    fmt::format_to(std::back_inserter(text),
                   R"({{"step":{},"epoch":{},"loss":{},"grad_norm":{},"learning_rate":{},"skipped_iter":0,)"
                   R"("num_zeros_in_grad":0,"token_per_sec_per_gpu":{},"tokens_per_second":{},)"
                   R"("tflops_per_device":{},"memory":154140672}})"
                   "\n",
                   i, i / 3e5, loss, 1 + 1.0 / i, 1e-3 * (1 - i / 1.1e6), 5678.123 + i % 97, 5.8e3 + i % 89 / 7.0,
                   0.019 + i % 13 / 1e4);
  }
  folder_.write("metrics.jsonl", text);
  const std::clock_t begin = std::clock();
  reader_.update();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("%.0f MB in %.2f s of CPU time\n", static_cast<double>(text.size()) / 1e6, seconds);
  EXPECT_EQ(reader_.lines(), kLines);
  EXPECT_EQ(reader_.malformed(), 0);
  const DownsampledSeries& loss = reader_.find("loss")->values;
  EXPECT_EQ(loss.points(), kLines);
  EXPECT_LE(loss.buckets().size(), 2048U);
  double peak = 0;
  for (const auto& bucket : loss.buckets())
    if (bucket.first_x > 1000) peak = std::max(peak, bucket.max);
  EXPECT_GT(peak, 40) << "a single bad step of a million is seen";
  // It takes 0.8 s (docs/observing.md); sanitizers take longer.
  EXPECT_LT(seconds, 60);
}

}  // namespace
}  // namespace megalith::observe
