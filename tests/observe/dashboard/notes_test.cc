// Notes and tags: from the page to the run's folder, and back.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/dashboard.h"
#include "megalith/observe/dashboard/notes_file.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_contains;
using testing::expect_error;

std::string write_token_of(Dashboard& dashboard) {
  const std::string page = dashboard.answer("/").body;
  const std::string mark = "data-write-token=\"";
  const size_t begin = page.find(mark) + mark.size();
  return page.substr(begin, page.find('"', begin) - begin);
}

TEST(RunNotes, AreReadStrictly) {
  const RunNotes notes{"diverged <b>", {"baseline", "größer"}};
  EXPECT_EQ(RunNotes::from_json(notes.to_json()), notes);
  EXPECT_EQ(RunNotes::from_json("{}"), RunNotes());
  for (const char* bad : {"", "[]", "{\"notes\":1}", "{\"tags\":\"x\"}", "{\"tags\":[1]}", "{\"tags\":[\"\"]}",
                          "{\"tags\":[\"a,b\"]}", "{\"tags\":[\"a\\nb\"]}", "{\"other\":1}"})
    EXPECT_THROW(RunNotes::from_json(bad), DataError) << bad;
  const auto sized = [](size_t notes_bytes, size_t tags, size_t tag_bytes) {
    return RunNotes{std::string(notes_bytes, 'x'), std::vector<std::string>(tags, std::string(tag_bytes, 'y'))}
        .to_json();
  };
  RunNotes::from_json(sized(16384, 32, 64));
  expect_error<DataError>([&] { RunNotes::from_json(sized(16385, 1, 1)); }, {"16385", "16384"});
  expect_error<DataError>([&] { RunNotes::from_json(sized(1, 33, 1)); }, {"32"});
  expect_error<DataError>([&] { RunNotes::from_json(sized(1, 1, 65)); }, {"64"});
}

TEST(RunNotes, AreKeptBesideTheRun) {
  const RunFolder folder;
  folder.write("run/args.yaml", "a: 1\n");
  const std::vector<fs::path> folders{folder / "run"};
  Dashboard dashboard(folders, {.takes_notes = true});
  const std::string token = write_token_of(dashboard);
  ASSERT_EQ(token.size(), 32U);
  const std::string body = R"({"notes":"good","tags":["a","b"]})";
  EXPECT_EQ(dashboard.post("/api/runs/0/notes", body, token).status, 204);
  const json run = json::parse(dashboard.answer("/api/runs/0").body);
  EXPECT_EQ(run.at("notes"), "good");
  EXPECT_EQ(run.at("tags"), json({"a", "b"}));
  struct stat info {};
  ASSERT_EQ(::stat((folder / "run/notes.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 022, 0U) << "writable by its owner alone";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "run"), {}), 2) << "no temporary file stays";
  Dashboard again(folders);
  EXPECT_EQ(json::parse(again.answer("/api/runs/0").body).at("notes"), "good");
}

TEST(RunNotes, AreRefusedFromElsewhere) {
  const RunFolder folder;
  folder.write("run/args.yaml", "a: 1\n");
  const std::vector<fs::path> folders{folder / "run"};
  Dashboard dashboard(folders, {.takes_notes = true});
  const std::string token = write_token_of(dashboard), body = R"({"notes":"bad"})";
  EXPECT_EQ(dashboard.post("/api/runs/0/notes", body, "").status, 403);
  EXPECT_EQ(dashboard.post("/api/runs/0/notes", body, std::string(32, '0')).status, 403);
  for (const char* path : {"/api/runs/1/notes", "/api/runs/0", "/api/runs/0/args.yaml", "/api/runs/../notes", "/notes",
                           "/api/runs/0/notes/..", "//api/runs/0/notes"})
    EXPECT_EQ(dashboard.post(path, body, token).status, 404) << path;
  const DashboardAnswer broken = dashboard.post("/api/runs/0/notes", "{", token);
  EXPECT_EQ(broken.status, 400);
  Dashboard reading(folders);
  EXPECT_EQ(write_token_of(reading), "");
  EXPECT_EQ(reading.post("/api/runs/0/notes", body, "").status, 403);
  expect_contains(reading.post("/api/runs/0/notes", body, token).body, "--read-only");
  EXPECT_FALSE(fs::exists(folder / "run/notes.json"));
}

TEST(RunNotes, LinksAreReplacedNotFollowed) {
  const RunFolder folder;
  folder.write("outside.json", "{}");
  folder.write("run/args.yaml", "a: 1\n");
  fs::create_symlink(folder / "outside.json", folder / "run/notes.json");
  write_notes(folder / "run", {"new", {}});
  EXPECT_FALSE(fs::is_symlink(folder / "run/notes.json"));
  EXPECT_EQ(fs::file_size(folder / "outside.json"), 2U);
  expect_error<DataError>([&] { write_notes(folder / "nothing", {}); }, {"nothing", "notes.json"});
}

}  // namespace
}  // namespace megalith::observe
