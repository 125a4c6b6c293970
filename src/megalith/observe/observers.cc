// The list of observers is an order: a callback may add numbers to the line of an event, and those after it in the list
// see them. So the list begins with the callbacks that measure (device cost, restarts, stragglers), continues with
// those that store lines (metrics.jsonl, events.jsonl, live.json, TensorBoard), and ends with those that print. Several
// of them are collective over the world; the list must therefore be the same on every rank, and only the callbacks
// themselves decide that just world process zero writes.
#include "megalith/observe/observers.h"
#include "megalith/observe/progress_log.h"

#include <algorithm>

#include "megalith/io/file_io.h"
#include "megalith/observe/device_cost.h"
#include "megalith/observe/energy/energy_callback.h"
#include "megalith/observe/events_file.h"
#include "megalith/observe/live_file.h"
#include "megalith/observe/loss_plot.h"
#include "megalith/observe/metrics_file.h"
#include "megalith/observe/profile/profile_callback.h"
#include "megalith/observe/record_files.h"
#include "megalith/observe/restart_callback.h"
#include "megalith/observe/straggler.h"
#include "megalith/observe/tensorboard.h"

namespace megalith::observe {
namespace {

using Callbacks = std::vector<std::unique_ptr<train::TrainerCallback>>;

// Repeats in every training line how many samples the data lacks, so that it stands beside every curve of the run.
class LeftOutCallback : public train::TrainerCallback {
 public:
  explicit LeftOutCallback(int64_t samples) : samples_(static_cast<double>(samples)) {}
  void on_log(train::TrainerEvent& event) override {
    if (event.metrics.find("tokens_per_second")) event.metrics.set("left_out_samples", samples_);
  }

 private:
  const double samples_;
};

// The callbacks that store lines; they come after those that complete them.
void add_files(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (const std::filesystem::path& folder = settings.output_dir; !folder.empty()) {
    callbacks.push_back(std::make_unique<MetricsFileCallback>(folder));
    callbacks.push_back(std::make_unique<EventsFileCallback>(
        folder, EventsFileCallback::Settings{settings.run_name, settings.grid}, setup.launch));
    LiveFileCallback::Settings live{folder, setup.waited_seconds, setup.peak_bytes, setup.gpu};
    if (setup.experts) {
      // The lambdas share ownership of the loads, which thus outlive the callback.
      live.note_experts = [experts = setup.experts] { experts->note(); };
      live.take_experts = [experts = setup.experts] { return experts->take(); };
    }
    callbacks.push_back(std::make_unique<LiveFileCallback>(setup.world, std::move(live)));
    callbacks.push_back(std::make_unique<RunFilesCallback>(folder, settings.arguments));
    callbacks.push_back(std::make_unique<LossPlotCallback>(folder, settings.run_name));
    if (settings.text_samples) callbacks.push_back(std::make_unique<SamplesFileCallback>(folder));
    if (settings.histograms) callbacks.push_back(std::make_unique<HistogramsFileCallback>(folder));
  }
  if (settings.log_progress && !settings.output_dir.empty())
    callbacks.push_back(
        std::make_unique<ProgressLogCallback>(settings.output_dir, setup.world.size(), settings.sequence_length));
  if (!settings.tensorboard_dir.empty())
    callbacks.push_back(std::make_unique<TensorboardCallback>(
        settings.tensorboard_dir,
        TensorboardCallback::Settings{settings.style, settings.tensorboard_log_interval, settings.arguments}));
}

// Phases are timed only on request, by --timing or timing_log_level: each log line then costs a gather over all ranks.
void add_timing(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (!setup.timing && settings.timing_log_level == 0) return;
  // Timers print to the same place as progress.
  const auto say = [write = setup.progress.write](const std::string& text) { write(text + "\n"); };
  callbacks.push_back(std::make_unique<TimerCallback>(
      setup.world, *setup.trace, TimerCallback::Settings{settings.timing_log_level, settings.timing_log_option}, say));
}

// A timeline is a file, so it needs an output_dir; so does a profile.
void add_timeline(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (settings.output_dir.empty() || !setup.steps) return;
  callbacks.push_back(std::make_unique<TraceCallback>(
      setup.world, *setup.trace,
      TraceCallback::Settings{*setup.steps, settings.output_dir / "trace.json", setup.rank_label}));
}

// Each of profile_ranks writes its own; the first of them also prints it.
void add_profile(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  const int rank = setup.world.rank();
  const std::vector<int>& ranks = settings.profile_ranks;
  if (settings.output_dir.empty() || !settings.profile || std::ranges::find(ranks, rank) == ranks.end()) return;
  ProfileCallback::Say say;
  if (rank == ranks.front() && !setup.progress.quiet) say = setup.progress.write;
  callbacks.push_back(
      std::make_unique<ProfileCallback>(*setup.trace,
                                        ProfileCallback::Settings{settings.profile->first, settings.profile->last,
                                                                  settings.output_dir / "profile", rank, setup.device},
                                        say));
}

// The caller knows the terminal (write, columns), the options the contents (style, throughput, zeros).
ProgressSettings progress_of(const ReportSettings& settings, ProgressSettings progress) {
  progress.style = settings.style;
  progress.throughput = settings.log_throughput;
  progress.num_zeros = settings.log_num_zeros;
  return progress;
}

}  // namespace

Callbacks make_observers(const ReportSettings& settings, const ObserverSetup& setup) {
  // The order matters: the first five add numbers to the lines, the others write what they find in them.
  Callbacks callbacks;
  if (setup.flops_per_token > 0)
    callbacks.push_back(std::make_unique<DeviceCostCallback>(
        setup.world, DeviceCostCallback::Settings{setup.flops_per_token, setup.peak_bytes, setup.reserved_bytes,
                                                  setup.device, setup.fp8_share}));
  if (settings.log_energy && setup.joules)
    callbacks.push_back(
        std::make_unique<EnergyCallback>(setup.world, EnergyCallback::Settings{setup.joules, setup.device}));
  if (setup.left_out_samples > 0) callbacks.push_back(std::make_unique<LeftOutCallback>(setup.left_out_samples));
  if (setup.launch) callbacks.push_back(std::make_unique<RestartCallback>(*setup.launch));
  if (settings.log_straggler && setup.waited_seconds)
    callbacks.push_back(std::make_unique<StragglerCallback>(
        setup.world, StragglerCallback::Settings{setup.waited_seconds, setup.device, settings.straggler_count}));
  add_files(callbacks, settings, setup);
  if (!setup.progress.quiet)
    callbacks.push_back(std::make_unique<ProgressCallback>(progress_of(settings, setup.progress)));
  if (setup.trace == nullptr) return callbacks;
  add_timing(callbacks, settings, setup);
  add_timeline(callbacks, settings, setup);
  add_profile(callbacks, settings, setup);
  return callbacks;
}

void RunFilesCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  // Replaced as a whole, so that a reader never sees half of it.
  io::replace_text_file(folder_ / "args.yaml", arguments_);
}

void RunFilesCallback::on_train_end(train::TrainerEvent& event) {
  if (event.state.is_world_process_zero) event.state.save(folder_ / "trainer_state.json");
}

}  // namespace megalith::observe
