// Breaks training jobs from outside, in every way, and checks how they end.
//
//   faults_program [--seed N] [--rounds N] [--only kind,kind…] [--kills N]
//
// A round goes through all kinds (or those of --only), each at a moment that the seed draws; then comes a job whose
// ranks are killed --kills times. One JSON line a job on stdout. Exit code 1: a job ended otherwise than documented
// (docs/faults.md); 77, which CTest counts as skipped: no job could be prepared on this machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/faults/fault_kinds.h"

namespace megalith::testing {
namespace {

struct Settings {
  unsigned seed = 1;
  int rounds = 1;
  int kills = 0;
  std::string only;
};

std::vector<std::string> problems_of(const FaultBench& bench, const FaultKindCase& kind, const FaultJob& job,
                                     const ProcessResult& result) {
  std::vector<std::string> problems;
  if (result.timed_out) problems.emplace_back("did not end in time");
  if (result.exit_code != kind.exit_code)
    problems.push_back("exit code " + std::to_string(result.exit_code) + ", not " + std::to_string(kind.exit_code));
  if (result.left_behind > 0) problems.push_back(std::to_string(result.left_behind) + " processes left over");
  for (const std::string& part : kind.told)
    if (result.err.find(part) == std::string::npos) problems.push_back("stderr does not say: " + part);
  if (!kind.again.empty()) {
    FaultJob second(bench, job.output().filename(), kind.again);
    const ProcessResult end = second.finish(kind.limit);
    if (end.exit_code != 0)
      problems.push_back("the second start ended with " + std::to_string(end.exit_code) + ":\n" + end.err);
  }
  const std::filesystem::path undisturbed =
      kind.own_reference ? bench.run_reference(job.output().filename().string() + "-undisturbed", kind.words)
                         : bench.reference();
  if (kind.equal && !FaultBench::equal_weights(job.output(), undisturbed))
    problems.emplace_back("weights differ from the undisturbed job");
  if (kind.clean_up) kind.clean_up(job.output());
  return problems;
}

enum class Verdict { kAsDocumented, kOtherwise, kNotRun };

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt

// Runs one job. Prints why if it cannot be prepared here, in the words that scripts/run_tests.sh lists.
Verdict run_kind(const FaultBench& bench, const FaultKindCase& kind, int round, std::mt19937& random) {
  const std::string name = kind.name + "-" + std::to_string(round);
  const std::string trigger = FaultJob::trigger_file(bench, name);
  std::map<std::string, std::string> env = kind.env;
  if (!kind.simulated.empty()) env["FT_SIM_FAULT_DESC"] = kind.simulated + ";1;@" + trigger;
  try {
    if (kind.prepare) kind.prepare(bench.scratch(name));
  } catch (const std::exception& error) {
    std::printf("SKIP: %s: %s\n", kind.name.c_str(), error.what());
    return Verdict::kNotRun;
  }
  std::vector<std::string> words = kind.words;
  if (kind.hangs)
    for (std::string& limit : bench.short_limits()) words.push_back(std::move(limit));
  FaultJob job(bench, name, words, env, kind.launcher);
  if (kind.strike)
    kind.strike(job, random);
  else if (job.wait_for_steps(std::uniform_real_distribution<double>(0.1, 1.2)(random)))
    std::ofstream(trigger) << "now\n";
  const ProcessResult result = job.finish(kind.limit);
  const auto problems = problems_of(bench, kind, job, result);
  nlohmann::ordered_json line{
      {"kind", kind.name}, {"round", round}, {"exit_code", result.exit_code}, {"seconds", result.seconds}};
  for (const char* metric : {"restarts", "detect_seconds", "resume_seconds", "goodput"})
    if (const auto value = last_metric(job.output(), metric)) line[metric] = *value;
  line["problems"] = problems;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  if (!problems.empty()) std::fprintf(stderr, "---- %s\n%s\n", name.c_str(), result.err.c_str());
  return problems.empty() ? Verdict::kAsDocumented : Verdict::kOtherwise;
}

bool wanted(const std::string& only, const std::string& name) {
  return only.empty() || ("," + only + ",").find("," + name + ",") != std::string::npos;
}

int run(const Settings& settings) {
  const FaultBench bench(MEGALITH_PROGRAM, MEGALITH_TEST_MODEL);
  std::mt19937 random(settings.seed);
  std::printf("{\"undisturbed_seconds\": %.2f}\n", bench.reference_seconds());
  std::map<Verdict, int> jobs;
  for (int round = 1; round <= settings.rounds; ++round) {
    for (const FaultKindCase& kind : all_fault_kinds())
      if (wanted(settings.only, kind.name)) ++jobs[run_kind(bench, kind, round, random)];
    if (settings.kills > 0) ++jobs[run_kind(bench, repeated_kills(settings.kills), round, random)];
  }
  if (jobs[Verdict::kOtherwise] > 0) {
    std::fprintf(stderr, "%d jobs ended otherwise than documented\n", jobs[Verdict::kOtherwise]);
    return 1;
  }
  return jobs[Verdict::kAsDocumented] == 0 && jobs[Verdict::kNotRun] > 0 ? kSkipped : 0;
}

}  // namespace
}  // namespace megalith::testing

int main(int argc, char** argv) {
  megalith::testing::Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t cut = word.find('=');
    const std::string name = word.substr(0, cut);
    const std::string value = cut != std::string::npos ? word.substr(cut + 1) : i + 1 < argc ? argv[++i] : "";
    if (name == "--seed")
      settings.seed = static_cast<unsigned>(std::atoi(value.c_str()));
    else if (name == "--rounds")
      settings.rounds = std::atoi(value.c_str());
    else if (name == "--kills")
      settings.kills = std::atoi(value.c_str());
    else if (name == "--only")
      settings.only = value;
    else {
      std::fprintf(stderr, "usage: faults_program [--seed N] [--rounds N] [--kills N] [--only kind,kind]\n");
      return 2;
    }
  }
  return megalith::testing::run(settings);
}
