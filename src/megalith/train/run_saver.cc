// Order of a save: the request is built on the training thread (texts are copied, tensors are views); the Saver copies
// or writes them; the folder gets its name when all ranks have written; and only then are older save points removed and
// on_save called. A crash at any point leaves the previous save points untouched and at most an unnamed folder, which
// the next run removes.
#include "megalith/train/run_saver.h"

#include <fmt/format.h>

#include <chrono>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/units.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/file_io.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::train {

RunSaver::RunSaver(Setup setup, parallel::ParallelContext& context)
    : setup_(std::move(setup)), context_(context), saver_(context) {
  const SaveSettings& settings = setup_.settings;
  if (!settings.rolling.local.folder.empty())
    local_.emplace(settings.rolling.local,
                   checkpoint::SavedLayout::of(context.grid().shape(), settings.sharded_optimizer), context);
}

std::optional<ResumePoint> RunSaver::load_local(int64_t oldest) {
  if (!local_) return std::nullopt;
  if (setup_.settings.rolling.local.loads) return local_->load(oldest);
  local_->clear();
  return std::nullopt;
}

void RunSaver::wait_for_earlier() {
  if (!saver_.busy()) return;
  if (context_.rank() == 0)
    log_warning("the previous save is still running; step {} waits for it", setup_.state.global_step);
  finish();
}

std::filesystem::path RunSaver::folder_of(bool rolling) const {
  const SaveSettings& settings = setup_.settings;
  if (rolling && local_) return local_->folder_of(setup_.state.global_step);
  return (rolling ? settings.rolling.folder : settings.output_dir) / checkpoint::folder_name(setup_.state.global_step);
}

void RunSaver::save(OptimizedModel& model, RunProgress progress, bool rolling) {
  TrainerState& state = setup_.state;
  setup_.heartbeat.enter(comm::Section::kCheckpointing, state.global_step);
  const auto span = setup_.trace.span({.name = "save-checkpoint", .lane = TraceLane::kHost, .level = 0});
  folder_ = folder_of(rolling);
  rolling_ = rolling;
  if (rolling && local_) {
    guarded([&] { save_locally(model, std::move(progress)); });
    return setup_.heartbeat.enter(comm::Section::kOutside, state.global_step);
  }
  if (rolling && context_.rank() == 0) io::make_folders(setup_.settings.rolling.folder);
  // Set before saving, because the state with this name is part of the save point; reset if the save fails.
  if (!rolling && state.best_global_step == state.global_step) state.best_model_checkpoint = folder_.string();
  checkpoint::SaveRequest request = save_request(model, {.folder = folder_,
                                                         .settings = setup_.settings,
                                                         .state = state,
                                                         .progress = std::move(progress),
                                                         .assets = setup_.assets});
  guarded([&] {
    if (setup_.settings.in_background)
      saver_.start(std::move(request));
    else
      complete(saver_.save(std::move(request)));
  });
  setup_.heartbeat.enter(comm::Section::kOutside, state.global_step);
}

// Training waits: the rank writes to a disk of its own machine.
void RunSaver::save_locally(OptimizedModel& model, RunProgress progress) {
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t bytes = local_->save(model, setup_.state, std::move(progress));
  if (context_.rank() == 0)
    log_info("saved {}: {} on this rank in {:.2f} s", folder_.string(), bytes_text(static_cast<double>(bytes)),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  setup_.saved(folder_);
}

void RunSaver::refuse(bool rolling, const std::string& reason) {
  folder_ = folder_of(rolling);
  rolling_ = rolling;
  guarded([&] { throw DataError(fmt::format("{} is not written: {}", folder_.string(), reason)); });
}

// Cheap when nothing is running. Otherwise a collective: the folder can be completed only if every rank has written.
void RunSaver::poll() {
  if (saver_.busy()) end(/*wait=*/false);
}

void RunSaver::finish() {
  if (!saver_.busy()) return;
  setup_.heartbeat.enter(comm::Section::kCheckpointing, setup_.state.global_step);
  end(/*wait=*/true);
}

// Completes the background save: waits for it, or only looks whether all ranks are done.
void RunSaver::end(bool wait) {
  const auto span = setup_.trace.span({.name = "save-checkpoint-finalize", .lane = TraceLane::kHost, .level = 0});
  guarded([&] {
    if (wait)
      complete(saver_.wait());
    else if (const auto report = saver_.poll())
      complete(*report);
  });
}

// A failed save is reported on all ranks as the same DataError, so all of them take the same branch here.
void RunSaver::guarded(const std::function<void()>& save) {
  try {
    save();
  } catch (const DataError& error) {
    if (required_) throw;
    if (!rolling_) last_failure_ = error.what();
    if (context_.rank() == 0)
      log_text(LogLevel::kError, fmt::format("{}; training continues without it", error.what()));
    if (setup_.state.best_model_checkpoint == folder_.string()) setup_.state.best_model_checkpoint.reset();
  }
}

// Old save points are removed only after the new one is complete.
void RunSaver::complete(const checkpoint::SaveReport& report) {
  if (!rolling_) last_failure_.clear();
  if (context_.rank() == 0) {
    log_info("saved {}: {} in {:.2f} s, of which training waited {:.2f} s", report.folder.string(),
             bytes_text(static_cast<double>(report.bytes)), report.total_seconds, report.stalled_seconds);
    checkpoint::Retention keep{.total_limit = setup_.settings.total_limit,
                               .retain_interval = setup_.settings.retain_interval};
    if (rolling_)
      keep = {.total_limit = 1, .retain_interval = std::nullopt};
    else if (const auto& best = setup_.state.best_model_checkpoint)
      keep.best = *best;
    for (const std::string& problem : checkpoint::rotate(report.folder.parent_path(), keep)) log_warning("{}", problem);
  }
  setup_.saved(report.folder);
}

}  // namespace megalith::train
