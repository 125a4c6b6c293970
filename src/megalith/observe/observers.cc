#include "megalith/observe/observers.h"

#include <algorithm>

#include "megalith/config/documents.h"
#include "megalith/io/file_io.h"
#include "megalith/observe/device_cost.h"
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

// Those that complete the lines come first, then those that store them.
void add_files(Callbacks& callbacks, const config::TrainingArguments& args, const ObserverSetup& setup) {
  if (const auto& folder = args.save.output_dir) {
    callbacks.push_back(std::make_unique<MetricsFileCallback>(*folder));
    callbacks.push_back(std::make_unique<EventsFileCallback>(*folder, setup.world.size(), setup.launch));
    LiveFileCallback::Settings live{*folder, setup.waited_seconds, setup.peak_bytes};
    if (setup.experts) {
      live.note_experts = [experts = setup.experts] { experts->note(); };
      live.take_experts = [experts = setup.experts] { return experts->take(); };
    }
    callbacks.push_back(std::make_unique<LiveFileCallback>(setup.world, std::move(live)));
    callbacks.push_back(std::make_unique<RunFilesCallback>(*folder));
    callbacks.push_back(std::make_unique<LossPlotCallback>(*folder));
  }
  if (const auto folder = tensorboard_folder(args)) callbacks.push_back(std::make_unique<TensorboardCallback>(*folder));
}

void add_timing(Callbacks& callbacks, const ObserverSetup& setup) {
  if (!setup.timing) return;
  const auto say = [write = setup.progress.write](const std::string& text) { write(text + "\n"); };
  callbacks.push_back(std::make_unique<TimerCallback>(setup.world, *setup.trace, say));
}

void add_timeline(Callbacks& callbacks, const config::TrainingArguments& args, const ObserverSetup& setup) {
  const auto profiled = TraceSteps::profiled(args.logging);
  if (!args.save.output_dir || (!setup.steps && !profiled)) return;
  TraceCallback::Settings settings;
  settings.steps = setup.steps ? *setup.steps : *profiled;
  settings.file = std::filesystem::path(*args.save.output_dir) / "trace.json";
  settings.label = setup.rank_label;
  const std::vector<int>& ranks = args.logging.profile_ranks;
  settings.records = setup.steps || std::ranges::find(ranks, setup.world.rank()) != ranks.end();
  callbacks.push_back(std::make_unique<TraceCallback>(setup.world, *setup.trace, std::move(settings)));
}

}  // namespace

Callbacks make_observers(const config::TrainingArguments& args, const ObserverSetup& setup) {
  Callbacks callbacks;
  if (setup.flops_per_token > 0)
    callbacks.push_back(std::make_unique<DeviceCostCallback>(
        setup.world,
        DeviceCostCallback::Settings{setup.flops_per_token, setup.peak_bytes, setup.reserved_bytes, setup.device}));
  if (setup.launch) callbacks.push_back(std::make_unique<RestartCallback>(*setup.launch));
  if (args.fault.log_straggler && setup.waited_seconds)
    callbacks.push_back(std::make_unique<StragglerCallback>(
        setup.world,
        StragglerCallback::Settings{setup.waited_seconds, setup.device, args.fault.straggler_minmax_count}));
  add_files(callbacks, args, setup);
  callbacks.push_back(std::make_unique<ProgressCallback>(setup.progress));
  if (setup.trace == nullptr) return callbacks;
  add_timing(callbacks, setup);
  add_timeline(callbacks, args, setup);
  return callbacks;
}

void RunFilesCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  io::replace_text_file(folder_ / "args.yaml", config::to_yaml(event.args));
}

void RunFilesCallback::on_train_end(train::TrainerEvent& event) {
  if (event.state.is_world_process_zero) event.state.save(folder_ / "trainer_state.json");
}

}  // namespace megalith::observe
