// metrics.jsonl: one JSON object per logged step, for programs to read during the run.
//
//   {"step":10,"epoch":0.5,"loss":2.345678901234,"grad_norm":1.5, …,"time":1763230000.125,"samples":80,"tokens":20480}
//   {"step":10,"epoch":0.5,"eval_loss":2.25,"eval_perplexity":9.487735836358526,"time": …}
//
// `step` and `epoch` come first, numbers have full precision, infinities and NaN are null. The last three are the other
// axes over which a curve can be drawn. Each line reaches the file as soon as it is logged.
#pragma once

#include <filesystem>

#include "megalith/observe/records/step_lines.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// The lines of the file; see StepLines for what becomes of those of an earlier start. One thread.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step) : lines_(path, resumed_step) {}

  // Writes one line. Throws like StepLines::append.
  void append(int64_t step, std::optional<double> epoch, const train::MetricList& metrics);

 private:
  StepLines lines_;
};

// Keeps `<folder>/metrics.jsonl` on world process zero; does nothing on other ranks. Expects to come after the
// callbacks that add numbers to lines, and completes them by
//   time      when the line was logged: seconds since 1970, to the millisecond
//   samples   training samples consumed so far
//   tokens    TrainerState::num_input_tokens_seen
// which only the file gets.
class MetricsFileCallback : public train::TrainerCallback {
 public:
  // Creates the folder, and opens the file in it, when training begins.
  explicit MetricsFileCallback(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::optional<MetricsFile> file_;
};

}  // namespace megalith::observe
