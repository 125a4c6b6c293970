// `megalith data` as a process: files in, files out, and nothing half-written whatever happens.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

class DataCommands : public ::testing::Test {
 protected:
  ProcessResult data(Strings words) const {
    words.insert(words.begin(), {MEGALITH_PROGRAM, "data"});
    return run_process(words);
  }
  json data_json(Strings words) const {
    words.emplace_back("--json");
    const auto result = data(std::move(words));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  void expect_refused(const Strings& words, const std::string& part) const {
    const auto result = data(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(temp_ / name, std::ios::binary) << text;
    return temp_ / name;
  }
  Strings names() const {
    Strings names;
    for (const auto& entry : std::filesystem::directory_iterator(temp_.path()))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string path(const std::string& name) const { return temp_ / name; }

  TempFolder temp_;
  std::string gpt2_ = tokenizer_folder("gpt2").string();
};

TEST_F(DataCommands, FromLinesToAnInspectedPair) {
  const std::string corpus =
      write("corpus.jsonl", "{\"text\": \"Hello world\"}\n{\"text\": \"\"}\n{\"text\": \"a\"}\n");
  const json made = data_json({"tokenize", corpus, "--tokenizer", gpt2_, "--append-eod", "--output", path("c")});
  EXPECT_EQ(made.at("documents"), 3);
  EXPECT_EQ(made.at("tokens"), 5);
  EXPECT_EQ(made.at("bad_lines"), 0);
  EXPECT_EQ(made.at("outputs")[0].at("prefix"), path("c_text_document"));
  EXPECT_EQ(made.at("outputs")[0].at("type"), "uint16");

  const json seen = data_json({"inspect", path("c_text_document"), "--tokenizer", gpt2_});
  EXPECT_EQ(seen.at("sequences"), 2);
  EXPECT_EQ(seen.at("documents"), 3);
  EXPECT_EQ(seen.at("first")[0].at("tokens"), json({15496, 995, 50256}));
  EXPECT_EQ(seen.at("first")[0].at("text"), "Hello world<|endoftext|>");
  EXPECT_EQ(seen.at("lengths"), json::parse(R"([{"from": 2, "to": 3, "sequences": 2}])"));
  expect_contains(data({"inspect", path("c_text_document")}).out, "3 documents, 2 sequences, 5 tokens (uint16)");

  EXPECT_EQ(data_json({"verify", path("c_text_document"), "--vocab-size", "50257"}).at("verified")[0].at("tokens"), 5);
  EXPECT_EQ(data({"verify", path("c_text_document"), "--tokenizer=" + gpt2_}).exit_code, 0);
  expect_refused({"verify", path("c_text_document"), "--vocab_size", "50256"},
                 "c_text_document.bin: byte 4: token 2 of sequence 0 is 50256");
}

TEST_F(DataCommands, Merge) {
  const std::string corpus = write("corpus.jsonl", "{\"text\": \"Hello world\"}\n");
  data_json({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("a")});
  const std::string pair = path("a_text_document");
  EXPECT_EQ(data_json({"merge", pair, pair, pair, "--output", path("m")}).at("documents"), 3);
  EXPECT_EQ(data({"verify", path("m")}).exit_code, 0);
  expect_refused({"merge", pair, "--output", path("m")}, "m.idx is there");
  EXPECT_EQ(data_json({"merge", pair, "--output", path("m"), "--overwrite"}).at("documents"), 1);
  expect_refused({"merge", pair, path("gone"), "--output", path("n")}, "gone.idx");
}

TEST_F(DataCommands, StdinBetweenFiles) {
  const std::string corpus = write("corpus.jsonl", "{\"text\": \"Hello world\"}\n");
  const std::string command = fmt::format("cat {0} | {1} data tokenize - {0} --tokenizer {2} --output {3} --json",
                                          corpus, MEGALITH_PROGRAM, gpt2_, path("s"));
  const auto result = run_process({"/bin/sh", "-c", command});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("documents"), 2);
}

TEST_F(DataCommands, BadLines) {
  const std::string corpus = write("corpus.jsonl", "{\"text\": \"a\"}\n{\"text\": \n{\"other\": \"b\"}\n");
  const Strings words{"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c")};
  expect_refused(words, "corpus.jsonl line 2: not valid JSON");
  EXPECT_EQ(names(), Strings{"corpus.jsonl"});
  Strings skipping = words;
  skipping.emplace_back("--skip-bad-lines");
  const auto result = data(skipping);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "corpus.jsonl line 3: there is no \"text\"");
  expect_contains(result.err, "2 bad lines were left out");
}

TEST_F(DataCommands, BadOptions) {
  const std::string corpus = write("corpus.jsonl", "{\"text\": \"a\"}\n");
  expect_refused({}, "megalith data needs a command: tokenize, inspect, verify");
  expect_refused({"tokenise"}, "did you mean tokenize?");
  expect_refused({"tokenize", corpus, "--output", path("c")}, "--tokenizer is missing");
  expect_refused({"tokenize", corpus, "--tokenizer", gpt2_}, "--output is missing");
  expect_refused({"tokenize", "--tokenizer", gpt2_, "--output", path("c")}, "no input is given");
  expect_refused({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c"), "--workers", "0"}, "--workers is 0");
  expect_refused({"tokenize", corpus, "--tokenizer", gpt2_, "--outputt", path("c")}, "outputt");
  expect_refused({"inspect"}, "PREFIX is missing");
  expect_refused({"inspect", path("gone")}, "gone.idx");
  EXPECT_EQ(data({"tokenize", "--help"}).exit_code, 0);
  data({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c")});
  expect_refused({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c")}, "add --overwrite");
  EXPECT_EQ(data({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c"), "--overwrite"}).exit_code, 0);
}

// A run that has written some of its output and waits for more input.
class InterruptedRun : public DataCommands {
 protected:
  // Ends the run with a signal; what it left behind.
  Strings left_after(int signal) {
    const std::string fifo = path("fifo");
    EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    // Also a reader, so that nothing waits for one, and never waits itself: the run may have ended.
    const int writer = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    Subprocess run({MEGALITH_PROGRAM, "data", "tokenize", fifo, "--tokenizer", gpt2_, "--output", path("c")});
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto wait = [&until] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return std::chrono::steady_clock::now() < until;
    };
    const std::string line = "{\"text\": \"some words of a document\"}\n";
    for (size_t bytes = 0; bytes < (size_t{8} << 20);)
      if (::write(writer, line.data(), line.size()) > 0)
        bytes += line.size();
      else if (!wait())
        break;
    std::error_code error;
    const auto some_written = [&] { return std::filesystem::file_size(path("c_text_document.bin.tmp"), error) > 0; };
    while ((!some_written() || error) && wait()) {
    }
    EXPECT_TRUE(some_written() && !error);
    run.signal(signal);
    EXPECT_EQ(run.finish(std::chrono::seconds(20)).exit_code, 128 + signal);
    ::close(writer);
    std::filesystem::remove(fifo);
    return names();
  }
};

TEST_F(InterruptedRun, KilledLeavesNoPair) {
  EXPECT_EQ(left_after(SIGKILL), (Strings{"c_text_document.bin.tmp", "c_text_document.idx.tmp"}));
  // The next run takes over what was left.
  const std::string corpus = write("corpus.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_EQ(data({"tokenize", corpus, "--tokenizer", gpt2_, "--output", path("c")}).exit_code, 0);
  EXPECT_EQ(names(), (Strings{"c_text_document.bin", "c_text_document.idx", "corpus.jsonl"}));
}

TEST_F(InterruptedRun, ControlCLeavesNothing) { EXPECT_EQ(left_after(SIGINT), Strings{}); }

TEST_F(DataCommands, VerifyLooksAtTheMediaOfDatasets) {
  const std::string images = (golden_dir() / "hf/vision/images").string();
  const auto record = [](const std::string& image) {
    return json{{"instruction", "<image>"}, {"output", "a"}, {"images", {image}}}.dump() + "\n";
  };
  const std::string whole = write("whole.jsonl", record("odd_97x61.png") + record("photo_320x240.jpg"));
  write("broken.jsonl", record("odd_97x61.png") + record("gone.jpg"));
  write("dataset_info.json",
        R"({"broken": {"file_name": "broken.jsonl", "columns":
            {"prompt": "instruction", "response": "output", "images": "images"}}})");
  const auto result = data({"verify", whole, "--media_dir", images});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "2 records, 2 images, 0 videos, 0 sounds: no fault");
  const auto facts = data_json({"verify", whole, "--media_dir", images}).at("verified").at(0);
  EXPECT_EQ(facts.at("images"), 2);
  EXPECT_TRUE(facts.at("faults").empty());
  const auto broken = data({"verify", "broken", "--dataset_dir", temp_.path(), "--media_dir", images});
  EXPECT_EQ(broken.exit_code, 2);
  expect_contains(broken.out, "broken.jsonl:2: the image gone.jpg does not exist");
  expect_contains(broken.err, "1 of 2 records");
  expect_refused({"verify", whole, "--vocab_size", "5"}, "are for pairs of .bin/.idx files");
  expect_refused({"verify", path("none")}, "none");
}

}  // namespace
}  // namespace megalith::testing
