#include "megalith/observe/dashboard/trace_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/observe/trace_export.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_error;

// Two ranks, two steps: rank 0 computes at [0,40) and [60,100), rank 1 at [20,80), in a step of 100 ns that begins at
// `at`; then the optimizer until 120.
std::vector<RankTrace> pipeline() {
  std::vector<RankTrace> ranks{{"rank 0: tp 0, pp 0, dp 0", 0, 0, {}}, {"rank 1: tp 0, pp 1, dp 0", 0, 0, {}}};
  for (const int64_t at : {0, 200'000}) {
    const auto span = [at](const char* name, int64_t begin, int64_t end, int microbatch = -1) {
      return ExportedSpan{name,           TraceLane::kCompute, microbatch, microbatch < 0 ? -1 : 0, at + begin * 1000,
                          at + end * 1000};
    };
    for (RankTrace& rank : ranks) rank.spans.push_back(span("forward-backward", 0, 100));
    ranks[0].spans.push_back(span("forward-compute", 0, 40, 0));
    ranks[0].spans.push_back(span("backward-compute", 60, 100, 0));
    ranks[1].spans.push_back(span("forward-compute", 20, 50, 0));
    ranks[1].spans.push_back(span("backward-compute", 50, 80, 0));
    ExportedSpan wait = span("recv", 40, 60);
    wait.lane = TraceLane::kCommunication;
    wait.purpose = "pipeline";
    wait.group = "pp";
    ranks[0].spans.push_back(wait);
    for (RankTrace& rank : ranks) rank.spans.push_back(span("optimizer", 100, 120));
  }
  return ranks;
}

TEST(TraceView, FindsStepsAndTheirBubble) {
  const TraceView view = TraceView::parse(trace_json(pipeline()));
  ASSERT_EQ(view.steps().size(), 2U);
  for (const TraceView::Step& step : view.steps()) {
    ASSERT_EQ(step.busy.size(), 2U);
    EXPECT_NEAR(step.busy[0], 0.8, 1e-9);
    EXPECT_NEAR(step.busy[1], 0.6, 1e-9);
    EXPECT_NEAR(step.bubble, 0.3, 1e-9);
  }
  EXPECT_EQ(view.ranks()[1].label, "rank 1: tp 0, pp 1, dp 0");
  EXPECT_EQ(view.spans(), 18);
  const auto summary = nlohmann::json::parse(view.summary_json());
  EXPECT_EQ(summary.at("steps"), 2);
  EXPECT_EQ(summary.at("bubbles"), (std::vector<double>{0.3, 0.3}));
}

TEST(TraceView, AStepHasItsOwnSpansAlone) {
  const TraceView view = TraceView::parse(trace_json(pipeline()));
  const auto step = nlohmann::json::parse(view.step_json(1));
  EXPECT_EQ(step.at("step"), 1);
  EXPECT_EQ(step.at("work"), (std::vector<double>{0, 100}));
  ASSERT_EQ(step.at("ranks").size(), 2U);
  const auto& spans = step.at("ranks").at(0).at("spans");
  ASSERT_EQ(spans.size(), 5U);
  const auto name = [&](const nlohmann::json& span) { return step.at("names").at(span.at(2).get<size_t>()); };
  bool waited = false;
  for (const auto& span : spans) {
    EXPECT_GE(span.at(0).get<double>(), 0);
    if (span.at(5) != 1) continue;
    waited = true;
    EXPECT_EQ(name(span), "recv");
    EXPECT_EQ(step.at("names").at(span.at(6).get<size_t>()), "pipeline (pp)");
  }
  EXPECT_TRUE(waited);
}

TEST(TraceView, OverlappingActionsCountOnce) {
  std::vector<RankTrace> ranks{{"", 0, 0, {}}};
  const auto add = [&](const char* name, int64_t begin, int64_t end, int microbatch) {
    ranks[0].spans.push_back({name, TraceLane::kCompute, microbatch, 0, begin * 1000, end * 1000});
  };
  add("forward-backward", 0, 100, -1);
  add("forward-compute", 10, 60, 0);
  add("backward-compute", 40, 70, 1);
  add("backward-compute", 45, 50, 2);
  EXPECT_NEAR(TraceView::parse(trace_json(ranks)).steps().at(0).bubble, 0.4, 1e-9);
}

TEST(TraceView, OtherPeoplesFilesAreRefusedOrEmpty) {
  expect_error<DataError>([] { TraceView::parse("not json"); }, {"trace.json"});
  expect_error<DataError>([] { TraceView::parse("[]"); }, {"traceEvents"});
  expect_error<DataError>([] { TraceView::parse(R"({"other":1})"); }, {"traceEvents"});
  const TraceView none = TraceView::parse(R"({"traceEvents":[]})");
  EXPECT_TRUE(none.steps().empty());
  const TraceView odd = TraceView::parse(R"({"traceEvents":[1,{"ph":"X"},{"ph":"X","pid":-1},{"ph":"X","pid":1e9},
    {"ph":"X","pid":0,"ts":"x","dur":-5,"name":7,"args":3},{"ph":"M","name":"process_name","pid":0,"args":{"name":5}}]})");
  EXPECT_EQ(odd.left_out(), 3);
  EXPECT_TRUE(odd.steps().empty());
}

}  // namespace
}  // namespace megalith::observe
