#include "megalith/observe/observers.h"

#include <algorithm>

#include "megalith/io/file_io.h"
#include "megalith/observe/device_cost.h"
#include "megalith/observe/energy_callback.h"
#include "megalith/observe/events_file.h"
#include "megalith/observe/live_file.h"
#include "megalith/observe/loss_plot.h"
#include "megalith/observe/metrics_file.h"
#include "megalith/observe/restart_callback.h"
#include "megalith/observe/straggler.h"
#include "megalith/observe/tensorboard.h"

namespace megalith::observe {
namespace {

using Callbacks = std::vector<std::unique_ptr<train::TrainerCallback>>;

// The callbacks that store lines; they come after those that complete them.
void add_files(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (const std::filesystem::path& folder = settings.output_dir; !folder.empty()) {
    callbacks.push_back(std::make_unique<MetricsFileCallback>(folder));
    callbacks.push_back(std::make_unique<EventsFileCallback>(
        folder, EventsFileCallback::Settings{settings.run_name, settings.grid}, setup.launch));
    LiveFileCallback::Settings live{folder, setup.waited_seconds, setup.peak_bytes};
    if (setup.experts) {
      live.note_experts = [experts = setup.experts] { experts->note(); };
      live.take_experts = [experts = setup.experts] { return experts->take(); };
    }
    callbacks.push_back(std::make_unique<LiveFileCallback>(setup.world, std::move(live)));
    callbacks.push_back(std::make_unique<RunFilesCallback>(folder, settings.arguments));
    callbacks.push_back(std::make_unique<LossPlotCallback>(folder, settings.run_name));
  }
  if (!settings.tensorboard_dir.empty())
    callbacks.push_back(std::make_unique<TensorboardCallback>(
        settings.tensorboard_dir,
        TensorboardCallback::Settings{settings.style, settings.tensorboard_log_interval, settings.arguments}));
}

void add_timing(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (!setup.timing) return;
  // Timers print to the same place as progress.
  const auto say = [write = setup.progress.write](const std::string& text) { write(text + "\n"); };
  callbacks.push_back(std::make_unique<TimerCallback>(
      setup.world, *setup.trace, TimerCallback::Settings{settings.timing_log_level, settings.timing_log_option}, say));
}

void add_timeline(Callbacks& callbacks, const ReportSettings& settings, const ObserverSetup& setup) {
  if (settings.output_dir.empty() || (!setup.steps && !settings.profile)) return;
  TraceCallback::Settings timeline;
  timeline.steps = setup.steps ? *setup.steps : *settings.profile;
  timeline.file = settings.output_dir / "trace.json";
  timeline.label = setup.rank_label;
  const std::vector<int>& ranks = settings.profile_ranks;
  // --trace records all ranks, profile only profile_ranks.
  timeline.records = setup.steps || std::ranges::find(ranks, setup.world.rank()) != ranks.end();
  callbacks.push_back(std::make_unique<TraceCallback>(setup.world, *setup.trace, std::move(timeline)));
}

ProgressSettings progress_of(const ReportSettings& settings, ProgressSettings progress) {
  progress.style = settings.style;
  progress.throughput = settings.log_throughput;
  progress.num_zeros = settings.log_num_zeros;
  return progress;
}

}  // namespace

Callbacks make_observers(const ReportSettings& settings, const ObserverSetup& setup) {
  // The order matters: the first four add numbers to the lines, the others write what they find in them.
  Callbacks callbacks;
  if (setup.flops_per_token > 0)
    callbacks.push_back(std::make_unique<DeviceCostCallback>(
        setup.world,
        DeviceCostCallback::Settings{setup.flops_per_token, setup.peak_bytes, setup.reserved_bytes, setup.device}));
  if (settings.log_energy && setup.joules)
    callbacks.push_back(
        std::make_unique<EnergyCallback>(setup.world, EnergyCallback::Settings{setup.joules, setup.device}));
  if (setup.launch) callbacks.push_back(std::make_unique<RestartCallback>(*setup.launch));
  if (settings.log_straggler && setup.waited_seconds)
    callbacks.push_back(std::make_unique<StragglerCallback>(
        setup.world, StragglerCallback::Settings{setup.waited_seconds, setup.device, settings.straggler_count}));
  add_files(callbacks, settings, setup);
  callbacks.push_back(std::make_unique<ProgressCallback>(progress_of(settings, setup.progress)));
  if (setup.trace == nullptr) return callbacks;
  add_timing(callbacks, settings, setup);
  add_timeline(callbacks, settings, setup);
  return callbacks;
}

void RunFilesCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  io::replace_text_file(folder_ / "args.yaml", arguments_);
}

void RunFilesCallback::on_train_end(train::TrainerEvent& event) {
  if (event.state.is_world_process_zero) event.state.save(folder_ / "trainer_state.json");
}

}  // namespace megalith::observe
