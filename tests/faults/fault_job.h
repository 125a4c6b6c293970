// A small training job as a person starts it, and the hands to break it from outside.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

// Data, model and reference result for all jobs; a scratch folder for each.
class FaultBench {
 public:
  // `program`: megalith; `model`: a Hugging Face folder. Runs the undisturbed job.
  FaultBench(std::string program, std::filesystem::path model);

  // Words of a job that writes to `output`; two ranks, dropout, a save point every few steps. Its ranks may be silent
  // for half an hour, the default: however slow a busy machine is, none is said to hang.
  std::vector<std::string> words(const std::filesystem::path& output, const std::vector<std::string>& more) const;
  // The same ranks started by torchrun, as on two machines: an agent for each, which start again three times.
  std::vector<std::string> torchrun_words(const std::filesystem::path& output,
                                          const std::vector<std::string>& more) const;
  // Words for a job that hangs, and is to be found soon: a rank may be silent for 3 seconds, or as long as this machine
  // took for half of the undisturbed job's steps.
  std::vector<std::string> short_limits() const;
  std::filesystem::path scratch(const std::string& name) const;
  // Runs an undisturbed job with these words; its folder.
  std::filesystem::path run_reference(const std::string& name, const std::vector<std::string>& more) const;
  std::filesystem::path reference() const { return folder_ / "reference"; }
  // Whether the exported weights of two jobs are equal bit for bit.
  static bool equal_weights(const std::filesystem::path& output, const std::filesystem::path& reference);
  double reference_seconds() const { return reference_seconds_; }
  std::map<std::string, std::string> env() const { return {{"XDG_CACHE_HOME", (folder_ / "cache").string()}}; }

 private:
  const std::string program_;
  const std::filesystem::path model_;
  TempFolder folder_;
  double reference_seconds_ = 0;
};

// MEGALITH_PYTHON; empty if none has torch.
std::string python_with_torch();

// The program that starts the ranks: `megalith train --nproc`, or torchrun.
enum class FaultLauncher { kOwn, kTorchrun };

// A running job.
class FaultJob {
 public:
  FaultJob(const FaultBench& bench, const std::string& name, const std::vector<std::string>& more = {},
           std::map<std::string, std::string> env = {}, FaultLauncher launcher = FaultLauncher::kOwn);

  const std::filesystem::path& output() const { return output_; }
  Subprocess& launcher() { return process_; }
  // Its ranks, by rank; those that live. Of torchrun's, in the order of their processes.
  std::vector<pid_t> ranks() const;
  // Sends a signal to a rank; false when there is none.
  bool signal_rank(size_t rank, int number) const;
  // Until the job has done a step (of its present start), then `seconds` more. False: it ended before.
  bool wait_for_steps(double seconds);
  bool wait_for_text(const std::string& text, double seconds = 60);
  // The file that a simulated fault waits for (FT_SIM_FAULT_DESC=…;@file).
  static std::string trigger_file(const FaultBench& bench, const std::string& name);
  ProcessResult finish(std::chrono::seconds limit);

 private:
  std::filesystem::path output_;
  FaultLauncher launcher_;
  Subprocess process_;
};

// The last number of a name in metrics.jsonl.
std::optional<double> last_metric(const std::filesystem::path& output, const std::string& name);

}  // namespace megalith::testing
