// Alerts from lines and events that are given directly, and the webhook that sends each of them once.
#include "megalith/observe/dashboard/alerts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/observe/dashboard/dashboard.h"
#include "megalith/observe/dashboard/webhook.h"
#include "megalith/observe/http/http_server.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;

DownsampledSeries losses(int lines, double last) {
  DownsampledSeries series;
  for (int i = 1; i <= lines; ++i) series.add(10 * i, 5 / std::sqrt(i) + 0.02 * (i % 5));
  series.add(10 * (lines + 1), last);
  return series;
}

std::vector<std::string> kinds(const AlertFacts& facts) {
  std::vector<std::string> all;
  for (const Alert& alert : alerts_of(facts)) all.push_back(alert.kind);
  return all;
}

using Kinds = std::vector<std::string>;

TEST(Alerts, AGoodRunHasNone) {
  const DownsampledSeries good = losses(60, 0.7);
  EXPECT_EQ(kinds({.now = 1000, .changed = 990, .loss = &good, .free_bytes = uint64_t{1} << 40}), Kinds());
  EXPECT_EQ(kinds({}), Kinds());
}

TEST(Alerts, LossSpikesAndNan) {
  const DownsampledSeries spike = losses(60, 9), few = losses(10, 9), nan = losses(60, std::nan(""));
  const std::vector<Alert> alerts = alerts_of({.loss = &spike});
  ASSERT_EQ(alerts.size(), 1U);
  EXPECT_EQ(alerts[0].kind, "loss_spike");
  EXPECT_EQ(alerts[0].step, 610);
  expect_contains(alerts[0].text, "jumped to 9 at step 610");
  EXPECT_EQ(kinds({.loss = &few}), Kinds()) << "too few lines to know what is usual";
  EXPECT_EQ(kinds({.loss = &nan}), Kinds{"nan"});
  const DownsampledSeries good = losses(60, 0.7);
  const auto skipped = [&](int step, const char* why) {
    const std::deque<std::string> events{
        nlohmann::json{{"time", 1}, {"step", step}, {"event", "skip"}, {"why", why}}.dump()};
    return kinds({.loss = &good, .events = &events});
  };
  EXPECT_EQ(skipped(600, "gradients"), Kinds{"nan"});
  EXPECT_EQ(skipped(600, "requested"), Kinds());
  EXPECT_EQ(skipped(100, "gradients"), Kinds()) << "long ago";
}

TEST(Alerts, AStallIsJudgedByTheUsualPace) {
  EXPECT_EQ(kinds({.now = 1000, .changed = 900}), Kinds());
  EXPECT_EQ(kinds({.now = 1000, .changed = 800}), Kinds{"stall"});
  EXPECT_EQ(kinds({.now = 1000, .ended = true, .changed = 800}), Kinds());
  DownsampledSeries slow;  // a line per minute
  for (int i = 0; i < 10; ++i) slow.add(i, 60.0 * i);
  EXPECT_EQ(kinds({.now = 1000, .changed = 800, .time = &slow}), Kinds());
  EXPECT_EQ(kinds({.now = 1700, .changed = 800, .time = &slow}), Kinds{"stall"});
}

TEST(Alerts, OldRunsHaveNone) {
  const DownsampledSeries nan = losses(60, std::nan(""));
  EXPECT_EQ(kinds({.now = 100000, .changed = 99000, .loss = &nan, .free_bytes = 1}),
            (Kinds{"nan", "stall", "low_disk"}));
  EXPECT_EQ(kinds({.now = 100000, .changed = 13000, .loss = &nan, .free_bytes = 1}), Kinds());
}

TEST(Alerts, SlowRanksAndFullDisks) {
  const std::deque<std::string> events{
      R"({"time":1,"step":5,"event":"straggler","rank":3,"compute_seconds":2.5,"median_seconds":1})"};
  const std::vector<Alert> alerts = alerts_of({.events = &events});
  ASSERT_EQ(alerts.size(), 1U);
  EXPECT_EQ(alerts[0].text, "rank 3 computes 2.5 s per step, the others 1 s");
  constexpr uint64_t kGib = uint64_t{1} << 30;
  EXPECT_EQ(kinds({.free_bytes = kGib / 2}), Kinds{"low_disk"});
  EXPECT_EQ(kinds({.free_bytes = 9 * kGib, .checkpoint_bytes = 5 * kGib}), Kinds{"low_disk"});
  EXPECT_EQ(kinds({.free_bytes = 11 * kGib, .checkpoint_bytes = 5 * kGib}), Kinds());
  EXPECT_EQ(kinds({.ended = true, .free_bytes = 1}), Kinds());
}

TEST(AlertWebhook, SendsEachAlertOnceAndOutlivesFailures) {
  const RunFolder folder;
  folder.write("run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":null}\n");
  const std::vector<std::filesystem::path> folders{folder / "run"};
  Dashboard dashboard(folders);
  std::mutex mutex;
  std::vector<std::string> bodies;
  bool refuses = true;
  HttpServer receiver({}, [&](const HttpRequest& request) {
    const std::scoped_lock lock(mutex);
    if (!refuses) bodies.push_back(request.body);
    return HttpResponse{.status = refuses ? 500 : 204};
  });
  std::thread serving([&] { receiver.run(); });
  std::vector<std::string> failures;
  {
    AlertWebhook webhook(dashboard, {.url = {"127.0.0.1", receiver.port(), "/hook"},
                                     .interval = std::chrono::milliseconds(20),
                                     .failed = [&](const std::string& reason) {
                                       const std::scoped_lock lock(mutex);
                                       failures.push_back(reason);
                                       refuses = false;
                                     }});
    for (int i = 0; i < 200; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::scoped_lock lock(mutex);
      if (!bodies.empty()) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  receiver.stop();
  serving.join();
  ASSERT_EQ(bodies.size(), 1U) << "an alert that lasts is sent once";
  const auto body = nlohmann::json::parse(bodies[0]);
  EXPECT_EQ(body.at("run"), "run");
  EXPECT_EQ(body.at("kind"), "nan");
  EXPECT_EQ(body.at("step"), 2);
  EXPECT_EQ(body.at("text"), "run: the loss of step 2 is not finite");
  ASSERT_EQ(failures.size(), 1U);
  expect_contains(failures[0], "500");
}

}  // namespace
}  // namespace megalith::observe
