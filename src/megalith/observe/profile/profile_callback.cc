#include "megalith/observe/profile/profile_callback.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/io/file_io.h"

namespace megalith::observe {

namespace {
constexpr size_t kRowsOfScreen = 20, kRowsOfFile = 60;  // most rows of a table
}  // namespace

ProfileCallback::~ProfileCallback() {
  if (profiler_) trace_.set_annotate({});
}

void ProfileCallback::on_step_begin(train::TrainerEvent& event) {
  const int64_t step = event.state.global_step + 1;
  if (profiler_ || step < settings_.first_step || step > settings_.last_step) return;
  profiler_ = std::make_unique<Profiler>(settings_.device);
  trace_.set_annotate(Profiler::annotate);
}

void ProfileCallback::on_step_end(train::TrainerEvent& event) {
  if (!profiler_) return;
  ++steps_;
  if (event.state.global_step >= settings_.last_step) write();
}

void ProfileCallback::on_train_end(train::TrainerEvent&) {
  if (profiler_) write();
}

void ProfileCallback::write() {
  trace_.set_annotate({});
  io::make_folders(settings_.folder);
  const std::filesystem::path file = settings_.folder / fmt::format("rank-{}.json", settings_.rank);
  const ProfileRecord record = profiler_->stop(file);
  profiler_.reset();
  const auto text_with = [&](size_t rows) {
    return text_of(record, std::max<int64_t>(1, steps_), settings_.device.is_cuda(), rows);
  };
  io::replace_text_file(settings_.folder / fmt::format("rank-{}.txt", settings_.rank), text_with(kRowsOfFile));
  if (say_)
    say_(fmt::format("profile of {} steps on rank {}: {}\n{}", steps_, settings_.rank, file.string(),
                     text_with(kRowsOfScreen)));
}

}  // namespace megalith::observe
