// The options that start ranks: shared by every command that runs on several.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/launcher.h"
#include "megalith/config/parser.h"

namespace megalith::cli {

// --nproc N on one machine, with --nnodes, --node_rank, --master_addr and --master_port on several; --log_dir.
// Declares itself to the parser, so it must not move while that runs.
struct LaunchFlags {
  std::optional<int64_t> nproc, nnodes, node_rank, master_port;
  std::optional<std::string> master_addr, log_dir;
  // A run: ranks answer a first signal themselves, in their own time (StopOnSignal), and rank 0 talks to the terminal.
  bool ends_in_order = false;

  std::vector<config::CommandOption> options();
  // All ranks of the run as far as the flags, or else the launcher's variables, say.
  int world_size() const;
  // Everything that settings alone can tell is checked once, before ranks exist: cross-checks, layout, backend. Throws
  // ConfigError with every problem.
  void check(const config::TrainingArguments& args, bool needs_inputs) const;
  // Runs `rank_main` in the ranks that the flags ask for, or, without --nproc, in this process.
  int run(const std::function<int()>& rank_main) const;

 private:
  comm::LaunchOptions launch_options() const;
};

}  // namespace megalith::cli
