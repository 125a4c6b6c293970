// Every kind of fault: how it is brought about from outside, and how the job must end.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/faults/fault_job.h"

namespace megalith::testing {

// One kind of fault: how a job is broken, how it must end, and what it must say.
struct FaultKindCase {
  std::string name;
  std::vector<std::string> words{};  // options of the job
  std::map<std::string, std::string> env{};
  bool hangs = false;       // found by time limits, which are short then
  std::string simulated{};  // kind of FT_SIM_FAULT_DESC that the trigger file sets off, on rank 1
  // Breaks the running job at a random moment; unset when the trigger file does it.
  std::function<void(FaultJob&, std::mt19937&)> strike{};
  std::function<void(const std::filesystem::path& output)> prepare{};  // before the job; throws: not possible here
  std::function<void(const std::filesystem::path& output)> clean_up{};
  int exit_code = 0;
  // The same job again, in the same folder, with these words; it must end well. Empty when there is no such run.
  std::vector<std::string> again{};
  std::vector<std::string> told{};  // parts of stderr: the culprit, the fault
  bool equal = true;                // the weights equal the undisturbed job's
  FaultLauncher launcher = FaultLauncher::kOwn;
  bool own_reference = false;  // the undisturbed job has the same words, too
  // After the strike the job may take so long, on a busy machine, too.
  std::chrono::seconds limit = std::chrono::seconds(120);
};
std::vector<FaultKindCase> all_fault_kinds();

// Kills a random rank at random moments, so many times in one job.
FaultKindCase repeated_kills(int times);

}  // namespace megalith::testing
