#include "megalith/observe/dashboard/dashboard.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/events_reader.h"
#include "megalith/observe/dashboard/page.h"
#include "megalith/observe/dashboard/run_view.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_contains;
using testing::expect_error;

json answer_of(Dashboard& dashboard, const std::string& path) {
  const DashboardAnswer answer = dashboard.answer(path);
  EXPECT_EQ(answer.status, 200) << path;
  return json::parse(answer.body);
}

Dashboard dashboard_of(std::vector<fs::path> folders) { return Dashboard(folders); }

void write_run(const RunFolder& folder, const std::string& name) {
  folder.write(name + "/metrics.jsonl",
               "{\"step\":1,\"epoch\":0.1,\"loss\":3.5,\"grad_norm\":1}\n{\"step\":2,\"loss\":null}\nbroken\n");
  folder.write(name + "/events.jsonl",
               R"({"time":1700000000.5,"step":0,"event":"start","run_name":"r","max_steps":10,"restarts":0,)"
               R"("layout":{"world_size":8,"tp":2,"pp":2,"cp":1,"ep":1,"etp":2,"vpp":1,"order":"tp-cp-ep-dp-pp"}})"
               "\nbroken\n");
  folder.write(name + "/args.yaml", "learning_rate: 0.001\n");
  folder.write(name + "/live.json", R"({"time":1,"step":2,"ranks":[{"compute_seconds":0.5,"wait_seconds":0.1}]})");
  folder.write(name + "/checkpoint-2/model.safetensors", "12345");
}

TEST(Dashboard, TellsEverythingOfARun) {
  const RunFolder folder;
  write_run(folder, "run");
  Dashboard dashboard = dashboard_of({folder / "run"});
  const json list = answer_of(dashboard, "/api/runs");
  ASSERT_EQ(list.at("runs").size(), 1U);
  EXPECT_EQ(list.at("runs").at(0).at("name"), "run");
  EXPECT_GT(list.at("now").get<double>(), 1.7e9);
  const json run = answer_of(dashboard, "/api/runs/0");
  EXPECT_EQ(run.at("version"), list.at("runs").at(0).at("version"));
  EXPECT_EQ(run.at("lines"), 2);
  EXPECT_EQ(run.at("malformed"), 1);
  EXPECT_EQ(run.at("malformed_events"), 1);
  EXPECT_EQ(run.at("series").at("loss").at("mean"), json::parse("[3.5,null]"));
  EXPECT_EQ(run.at("series").at("loss").at("not_finite"), 1);
  EXPECT_EQ(run.at("start").at("max_steps"), 10);
  EXPECT_EQ(run.at("ended"), false);
  EXPECT_EQ(run.at("layout").at("dp"), 2);
  EXPECT_EQ(run.at("layout").at("places").at(3), json::parse("[1,0,1,0,0]"));
  EXPECT_EQ(run.at("layout").at("places").at(4), json::parse("[0,0,0,1,0]"));
  EXPECT_EQ(run.at("live").at("ranks").at(0).at("compute_seconds"), 0.5);
  EXPECT_EQ(run.at("checkpoints").at(0).at("step"), 2);
  EXPECT_EQ(run.at("checkpoints").at(0).at("bytes"), 5);
  EXPECT_EQ(run.at("args"), "learning_rate: 0.001\n");
  EXPECT_TRUE(run.at("trace").is_null());
  EXPECT_TRUE(run.at("problems").empty()) << run.at("problems");
}

TEST(Dashboard, AnswersWithTheStepsOfAZoom) {
  const RunFolder folder;
  std::string lines;
  for (int step = 1; step <= 5'000; ++step) lines += fmt::format("{{\"step\":{0},\"loss\":{0}}}\n", step);
  folder.write("run/metrics.jsonl", lines);
  Dashboard dashboard = dashboard_of({folder / "run"});
  const json whole = answer_of(dashboard, "/api/runs/0");
  EXPECT_LT(whole.at("series").at("loss").at("x").size(), 2'500U);
  const json part = answer_of(dashboard, "/api/runs/0/steps/3000-3009");
  EXPECT_EQ(part.at("version"), whole.at("version"));
  EXPECT_EQ(part.at("from"), 3000);
  EXPECT_EQ(part.at("to"), 3009);
  EXPECT_EQ(part.at("series").at("loss").at("x"), json::parse("[3000,3001,3002,3003,3004,3005,3006,3007,3008,3009]"));
  EXPECT_EQ(part.at("series").at("loss").at("mean"), part.at("series").at("loss").at("x"));
  EXPECT_TRUE(answer_of(dashboard, "/api/runs/0/steps/6000-7000").at("series").empty());
  for (const char* bad : {"", "1", "1-", "-1", "1-x", "a-2", "1-2-3", "-1-2", "1.5-2", "1-1234567890123456"})
    EXPECT_EQ(dashboard.answer(std::string("/api/runs/0/steps/") + bad).status, 404) << bad;
  EXPECT_EQ(dashboard.answer("/api/runs/1/steps/1-2").status, 404);
}

TEST(Dashboard, VersionsGrowWithWhatIsNew) {
  const RunFolder folder;
  write_run(folder, "run");
  RunView run(folder / "run", "run");
  run.update();
  const int64_t first = run.version();
  run.update();
  EXPECT_EQ(run.version(), first);
  folder.append("run/metrics.jsonl", "{\"step\":3,\"loss\":3}\n");
  run.update();
  EXPECT_GT(run.version(), first);
  const int64_t second = run.version();
  folder.append("run/events.jsonl", "{\"time\":1,\"step\":3,\"event\":\"end\"}\n");
  run.update();
  EXPECT_GT(run.version(), second);
  EXPECT_EQ(json::parse(run.json()).at("ended"), true);
}

TEST(Dashboard, AnEmptyFolderIsARunThatHasNotBegun) {
  const RunFolder folder;
  Dashboard dashboard = dashboard_of({folder.path()});
  const json run = answer_of(dashboard, "/api/runs/0");
  EXPECT_EQ(run.at("lines"), 0);
  EXPECT_TRUE(run.at("series").empty());
  EXPECT_TRUE(run.at("start").is_null());
  EXPECT_TRUE(run.at("layout").is_null());
  EXPECT_EQ(run.at("changed"), 0);
}

TEST(Dashboard, AFolderOfRunsStandsForAllOfThemAndNamesDiffer) {
  const RunFolder folder;
  for (const char* name : {"a/out", "b/out", "b/other"}) write_run(folder, name);
  Dashboard all = dashboard_of({folder / "a", folder / "b"});
  std::vector<std::string> names;
  const json list = answer_of(all, "/api/runs");
  for (const json& run : list.at("runs")) names.push_back(run.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"a/out", "other", "b/out"}));
  EXPECT_EQ(dashboard_of({folder / "a/out", folder / "a/out"}).runs(), 1U);
}

TEST(Dashboard, SaysWhatIsWrongWithAFolder) {
  const RunFolder folder;
  folder.write("file", "x");
  expect_error<ConfigError>([&] { dashboard_of({folder / "nothing"}); }, {"nothing", "output_dir"});
  expect_error<ConfigError>([&] { dashboard_of({folder / "file"}); }, {"file", "not a folder"});
  expect_error<ConfigError>([&] { dashboard_of({}); }, {"output_dir"});
  for (size_t i = 0; i <= Dashboard::kMostRuns; ++i) folder.write("many/" + std::to_string(i) + "/args.yaml", "");
  expect_error<ConfigError>([&] { dashboard_of({folder / "many"}); }, {"65 runs", "at most 64"});
}

TEST(Dashboard, NothingElseCanBeReached) {
  const RunFolder folder;
  write_run(folder, "run");
  folder.write("secret.txt", "password");
  folder.write("run/secret.txt", "password");
  Dashboard dashboard = dashboard_of({folder / "run"});
  for (const char* path : {"",
                           "/index.html",
                           "/..",
                           "/../secret.txt",
                           "/secret.txt",
                           "/run/secret.txt",
                           "/api",
                           "/api/",
                           "/api/runs/",
                           "/api/runs/1",
                           "/api/runs/-1",
                           "/api/runs/00000000",
                           "/api/runs/0/",
                           "/api/runs/0/..",
                           "/api/runs/0/../secret.txt",
                           "/api/runs/0/secret.txt",
                           "/api/runs/0/trace",
                           "/api/runs/0/trace/",
                           "/api/runs/0/trace/0",
                           "/api/runs/%30",
                           "/api/runs/0%2fsecret.txt",
                           "/api/runs/0x0",
                           "/api/runs0",
                           "//api/runs",
                           "/api/runs/0/trace/99999999999999999999"}) {
    const DashboardAnswer answer = dashboard.answer(path);
    EXPECT_EQ(answer.status, 404) << path;
    EXPECT_EQ(answer.body.find("password"), std::string::npos) << path;
  }
}

TEST(Dashboard, LinksOutOfTheFolderAreReportedNotFollowed) {
  const RunFolder folder;
  folder.write("outside/metrics.jsonl", "{\"step\":1,\"secret\":42}\n");
  folder.write("outside/args.yaml", "password: 42\n");
  folder.write("outside/checkpoint-7/x", "x");
  fs::create_directory(folder / "run");
  for (const char* name : {"metrics.jsonl", "args.yaml", "checkpoint-7"})
    fs::create_symlink(folder / "outside" / name, folder / "run" / name);
  Dashboard dashboard = dashboard_of({folder / "run"});
  const DashboardAnswer answer = dashboard.answer("/api/runs/0");
  EXPECT_EQ(answer.body.find("secret"), std::string::npos);
  EXPECT_EQ(answer.body.find("password"), std::string::npos);
  const json run = json::parse(answer.body);
  EXPECT_TRUE(run.at("checkpoints").empty());
  ASSERT_EQ(run.at("problems").size(), 2U);
  expect_contains(run.at("problems").at(0), "leads out of the run's folder");
}

TEST(Dashboard, BrokenFilesAreProblemsNotErrors) {
  const RunFolder folder;
  write_run(folder, "run");
  folder.write("run/live.json", "{");
  folder.write("run/trace.json", "[]");
  folder.write("run/args.yaml", std::string(2 << 20, 'x'));
  Dashboard dashboard = dashboard_of({folder / "run"});
  const json run = answer_of(dashboard, "/api/runs/0");
  EXPECT_EQ(run.at("lines"), 2);
  ASSERT_EQ(run.at("problems").size(), 3U) << run.at("problems");
  EXPECT_TRUE(run.at("live").is_null());
}

TEST(Dashboard, LayoutsFromFilesAreChecked) {
  const auto with = [](const std::string& layout) {
    return layout_json(R"({"event":"start","time":1,"step":0,"layout":)" + layout + "}");
  };
  EXPECT_TRUE(with(R"({"world_size":1,"tp":1,"pp":1,"cp":1,"ep":1,"etp":1,"order":"tp-cp-ep-dp-pp"})").has_value());
  for (const char* bad :
       {"null", "[]", "{}", R"({"world_size":6,"tp":4,"pp":1,"cp":1,"ep":1,"etp":4,"order":"tp-cp-ep-dp-pp"})",
        R"({"world_size":-4,"tp":1,"pp":1,"cp":1,"ep":1,"etp":1,"order":"tp-cp-ep-dp-pp"})",
        R"({"world_size":4,"tp":1,"pp":1,"cp":1,"ep":1,"etp":1,"order":"<script>"})",
        R"({"world_size":1e300,"tp":1,"pp":1,"cp":1,"ep":1,"etp":1,"order":"tp-cp-ep-dp-pp"})"})
    EXPECT_FALSE(with(bad).has_value()) << bad;
  EXPECT_FALSE(layout_json("").has_value());
  const auto large = with(R"({"world_size":65536,"tp":8,"pp":8,"cp":1,"ep":1,"etp":8,"order":"tp-cp-ep-dp-pp"})");
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(json::parse(*large).contains("places"));
}

constexpr const char* kHostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&@DATA@@SCRIPT@";

TEST(Dashboard, HostileTextsStayTextsInTheReport) {
  const RunFolder folder;
  std::string name = kHostile;
  std::ranges::replace(name, '/', '|');
  fs::create_directory(folder / name);
  const json line{{"step", 1}, {kHostile, 2}, {"__proto__", 3}};
  std::ofstream(folder / name / "metrics.jsonl") << line.dump() << "\n";
  std::ofstream(folder / name / "args.yaml") << "run_name: " << kHostile << "\xff\xfe\n";
  std::ofstream(folder / name / "events.jsonl")
      << json{{"time", 1}, {"step", 1}, {"event", kHostile}, {"checkpoint", kHostile}}.dump() << "\n";
  Dashboard dashboard = dashboard_of({folder / name});
  const std::string page = dashboard.report();
  const size_t begin = page.find("<script type=\"application/json\""), end = page.find("</script>", begin);
  ASSERT_NE(begin, std::string::npos);
  const std::string data = page.substr(page.find('>', begin) + 1, end - page.find('>', begin) - 1);
  EXPECT_EQ(data.find('<'), std::string::npos);
  const json parsed = json::parse(data);
  EXPECT_EQ(parsed.at("runs").at(0).at("name"), name);
  EXPECT_EQ(parsed.at("runs").at(0).at("series").at(kHostile).at("last"), json::parse("[1,2]"));
  size_t scripts = 0;
  for (size_t at = page.find("<script"); at != std::string::npos; at = page.find("<script", at + 1)) ++scripts;
  EXPECT_EQ(scripts, 2U);
  EXPECT_EQ(page.find("<img"), std::string::npos);
}

TEST(Dashboard, PagesRunOnlyTheirOwnScripts) {
  const RunFolder folder;
  Dashboard dashboard = dashboard_of({folder.path()});
  const DashboardAnswer first = dashboard.answer("/"), second = dashboard.answer("/");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.type, "text/html; charset=utf-8");
  EXPECT_NE(first.nonce, second.nonce);
  EXPECT_EQ(first.nonce.size(), 32U);
  expect_contains(first.body, "script-src 'nonce-" + first.nonce + "'");
  expect_contains(first.body, "<script nonce=\"" + first.nonce + "\">");
  expect_contains(content_security_policy("abc"), "default-src 'none'");
  expect_contains(content_security_policy("abc"), "frame-ancestors 'none'");
  for (const char* forbidden :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"}) {
    std::string page = first.body;
    if (const size_t svg = page.find("http://www.w3.org/2000/svg"); svg != std::string::npos) page.erase(svg, 26);
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden << ": works offline, makes no HTML of texts";
  }
  EXPECT_EQ(first.body.find("@"), first.body.find("@media")) << "a mark was not filled";
}

TEST(Dashboard, ManyThreadsMayAsk) {
  const RunFolder folder;
  write_run(folder, "run");
  Dashboard dashboard = dashboard_of({folder / "run"});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) EXPECT_EQ(dashboard.answer("/api/runs/0").status, 200);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace megalith::observe
