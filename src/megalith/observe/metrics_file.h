// metrics.jsonl: one JSON object per logged step, for programs to read during the run.
//
//   {"step":10,"epoch":0.5,"loss":2.345678901234,"grad_norm":1.5, …,"time":1763230000.125,"samples":80,"tokens":20480}
//   {"step":10,"epoch":0.5,"eval_loss":2.25,"eval_perplexity":9.487735836358526,"time": …}
//
// `step` and `epoch` come first, numbers have full precision, infinities and NaN are null. The last three are the other
// axes over which a curve can be drawn. Each line reaches the file as soon as it is logged.
#pragma once

#include <filesystem>

#include "megalith/io/file_io.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Appends lines to the file. One thread. Lines are never changed once written, so a reader may keep its position.
class MetricsFile {
 public:
  // Opens or creates the file. Of an existing file, lines up to `resumed_step` stay: later lines are of steps that the
  // resumed run repeats, and a last line without its end was cut off by a crash. A run from the start (0) keeps none.
  // Throws DataError when a complete line is not a JSON object with a step: such a file is not ours to cut.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step);

  // Writes one line with one system call, so that a reader sees all of it or nothing. Throws DataError when the disk is
  // full or the file is gone.
  void append(int64_t step, std::optional<double> epoch, const train::MetricList& metrics);

 private:
  io::FileHandle file_;
  uint64_t bytes_ = 0;  // written so far
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
