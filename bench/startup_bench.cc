// Measures the time from exec to the first barrier of four ranks: ours against torchrun with a Python script that does
// the same.
//
// The programs alternate; each result is the median of the runs. Prints one JSON line. The peer is `torchrun` from the
// PATH (or --torchrun PATH, in an environment with torch installed); without it, only our own time is printed.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/support/subprocess.h"

namespace megalith {
namespace {

using testing::Subprocess;

// Returns the seconds until the program prints "barrier"; it must then end with exit code 0.
double time_to_barrier(const std::vector<std::string>& command) {
  const auto start = std::chrono::steady_clock::now();
  Subprocess program(command);
  const bool arrived = program.wait_for_text("barrier", std::chrono::seconds(120));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto result = program.finish(std::chrono::seconds(60));
  if (!arrived || result.exit_code != 0) {
    fmt::print(stderr, "{} failed with exit code {}:\n{}\n", command[0], result.exit_code, result.err);
    std::exit(1);
  }
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Searches the PATH like a shell; a name with a slash is a path already.
std::optional<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  for (size_t from = 0; from <= path.size();) {
    const size_t to = std::min(path.find(':', from), path.size());
    const auto candidate = std::filesystem::path(path.substr(from, to - from)) / name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    from = to + 1;
  }
  return std::nullopt;
}

int run(int ranks, int runs, const std::string& torchrun) {
  const std::vector<std::string> ours{BARRIER_PROGRAM, std::to_string(ranks)};
  const auto peer = find_program(torchrun);
  const std::vector<std::string> theirs{peer.value_or(""), "--nproc_per_node", std::to_string(ranks), BARRIER_SCRIPT};

  time_to_barrier(ours);  // warm the page cache
  if (peer) time_to_barrier(theirs);
  std::vector<double> our_times, their_times;
  for (int i = 0; i < runs; ++i) {
    our_times.push_back(time_to_barrier(ours));
    if (peer) their_times.push_back(time_to_barrier(theirs));
  }
  nlohmann::ordered_json line{
      {"bench", "startup"}, {"ranks", ranks}, {"runs", runs}, {"megalith_s", median(our_times)}};
  if (peer) {
    line["torchrun_s"] = median(their_times);
    line["ratio"] = median(their_times) / median(our_times);
  } else {
    line["torchrun_s"] = nullptr;
    line["note"] = "no torchrun on the PATH: no comparison";
  }
  fmt::print("{}\n", line.dump());
  return 0;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  int ranks = 4, runs = 7;
  std::string torchrun = "torchrun";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--ranks") ranks = std::atoi(argv[i + 1]);
    if (name == "--runs") runs = std::atoi(argv[i + 1]);
    if (name == "--torchrun") torchrun = argv[i + 1];
  }
  return megalith::run(ranks, std::max(1, runs), torchrun);
}
