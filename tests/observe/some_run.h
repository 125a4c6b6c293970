// A run without a trainer: settings, state and flags, and callbacks that hear of what a test lets happen.
#pragma once

#include <string>
#include <vector>

#include "megalith/io/file_io.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/settings/trainer_settings.h"
#include "tests/support/temp_folder.h"

namespace megalith::observe {

// A made-up run: calls a callback as a trainer does, with a clock that the test sets.
struct SomeRun {
  train::TrainerSettings settings{};
  train::TrainerState state{};
  train::TrainerControl control{};
  double clock_seconds = 0;  // TrainerEvent's

  // Events of one callback; metrics are those of a line.
  using Handler = void (train::TrainerCallback::*)(train::TrainerEvent&);
  train::MetricList tell(train::TrainerCallback& callback, Handler handler, const train::MetricList& metrics = {}) {
    train::TrainerEvent event{settings, state, control, metrics, {}, clock_seconds};
    (callback.*handler)(event);
    return event.metrics;
  }
  void begin(train::TrainerCallback& callback) { tell(callback, &train::TrainerCallback::on_train_begin); }
  void end(train::TrainerCallback& callback) { tell(callback, &train::TrainerCallback::on_train_end); }
  // The step is counted before.
  train::MetricList log(train::TrainerCallback& callback, const train::MetricList& metrics) {
    return tell(callback, &train::TrainerCallback::on_log, metrics);
  }
};

// Returns the content of a file.
inline std::string text_of_file(const std::filesystem::path& path) { return io::read_text_file(path, 1 << 26); }

}  // namespace megalith::observe
