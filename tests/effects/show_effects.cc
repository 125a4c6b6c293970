// Options about the output of a run: lines, pictures, TensorBoard files, timers, profiles.
#include <fmt/format.h>

#include <fstream>

#include "megalith/config/derive.h"
#include "megalith/observe/observers.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "tests/effects/effect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using config::Dialect;
using config::TrainingArguments;
using train::TrainerCallback;

// Times differ from run to run: words stay.
std::string words_of(const std::string& text) {
  std::string words;
  for (const char c : text)
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '\n') words += c;
  return words;
}

std::string content(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run_steps(const train::CallbackList& list, TraceRecorder& trace, train::TrainerEvent& event) {
  train::TrainerState& state = event.state;
  list.call(&TrainerCallback::on_train_begin, event);
  while (state.global_step < state.max_steps) {
    list.call(&TrainerCallback::on_step_begin, event);
    { const auto span = trace.span({.name = "coarse", .level = 0}); }
    { const auto span = trace.span({.name = "fine", .level = 1}); }
    ++state.global_step;
    list.call(&TrainerCallback::on_step_end, event);
    event.metrics = {{"loss", 2.5}, {"tokens_per_second", 2000}};
    state.log_history.push_back({{"loss", 2.5}, {"step", static_cast<double>(state.global_step)}});
    list.call(&TrainerCallback::on_log, event);
  }
  list.call(&TrainerCallback::on_train_end, event);
}

struct Shown {
  std::string said;     // on stderr
  std::string picture;  // loss.svg
  std::string jobs;     // progress.txt
  std::string profile;  // profile/rank-0.json
};

// A run of four steps that are all logged.
Shown show(TrainingArguments args) {
  const TempFolder folder;
  args.save.output_dir = folder.path().string();
  args = config::derive(args).args;
  Shown shown{};
  run_ranks(1, [&](const Rank& rank) {
    TraceRecorder trace;
    observe::ObserverSetup setup;
    setup.world = rank.world.world();
    setup.trace = &trace;
    setup.progress.write = [&](std::string_view text) { shown.said += text; };
    setup.flops_per_token = 1e9;
    setup.peak_bytes = [] { return 1 << 20; };
    setup.joules = [joules = 0.0]() mutable { return joules += 5; };
    train::CallbackList list;
    for (auto& callback : observe::make_observers(run::report_settings(args, {.world_size = 1}), setup))
      list.add(std::move(callback));
    train::TrainerState state;
    train::TrainerControl control;
    state.max_steps = 4;
    state.is_world_process_zero = true;
    const train::TrainerSettings settings;
    train::TrainerEvent event{settings, state, control};
    run_steps(list, trace, event);
  });
  shown.picture = content(folder / "loss.svg");
  shown.profile = content(folder / "profile" / "rank-0.json");
  shown.jobs = content(folder / "progress.txt");
  return shown;
}

std::string said(const TrainingArguments& args) { return words_of(show(args).said); }
std::string picture(const TrainingArguments& args) { return show(args).picture; }
// How many steps the profile shows, by a span that each of them has.
std::string profiled_steps(const TrainingArguments& args) {
  const std::string profile = show(args).profile;
  int steps = 0;
  for (size_t at = profile.find("\"coarse\""); at != std::string::npos; at = profile.find("\"coarse\"", at + 1))
    ++steps;
  return std::to_string(steps);
}
std::string jobs(const TrainingArguments& args) { return words_of(show(args).jobs); }

}  // namespace

Effects show_effects() {
  const Words profile{"--profile", "--profile_step_start=0", "--profile_step_end=2"};
  return {
      {"run_name", {}, {}, {"--run_name=second try"}, picture},
      {"timing_log_level", {}, {}, {"--timing_log_level=1"}, said},
      {"timing_log_option", {"--timing_log_level=1"}, {}, {"--timing_log_option=max"}, said},
      {"log_throughput", {}, {}, {"--log_throughput"}, said, Dialect::kPretrain},
      {"log_progress", {}, {}, {"--log_progress"}, jobs, Dialect::kPretrain},
      {"log_energy", {}, {}, {"--log_energy"}, said, Dialect::kPretrain},
      {"profile", {"--profile_step_start=0", "--profile_step_end=2"}, {}, {"--profile"}, profiled_steps},
      {"profile_step_start",
       {"--profile", "--profile_step_end=3"},
       {"--profile_step_start=0"},
       {"--profile_step_start=2"},
       profiled_steps},
      {"profile_step_end",
       {"--profile", "--profile_step_start=0"},
       {"--profile_step_end=1"},
       {"--profile_step_end=3"},
       profiled_steps},
      {"profile_ranks", profile, {}, {"--profile_ranks=1"}, profiled_steps},
  };
}

}  // namespace megalith::testing
