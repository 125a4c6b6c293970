// progress.txt: Megatron's record of the jobs and checkpoints of a run, in its save folder, for scripts that read it.
// Fields are separated by tabs:
//
//   2026-01-31 10:00:00  Job ID: 17  # GPUs: 8  Starting job
//   2026-01-31 10:30:00  Job ID: 17  # GPUs: 8  Saved checkpoint  Iteration: 500  Job throughput: 412.3 TFLOP/s/GPU
//     Cumulative throughput: 410.8 TFLOP/s/GPU  Floating-point operations: 5.94e+18  Tokens (in billions): 0.13
//   2026-01-31 11:00:00  Job ID: 17  # GPUs: 8  Deleted checkpoint  Iteration: 500
//
// With async_save, "Saving async checkpoint" has these numbers, and "Saved async checkpoint" follows when it is on
// disk. The cumulative throughput counts from the first job of the same size after the last one of another size,
// including the time between jobs and the work that was lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Appends to the file and reads it back. One thread of one rank.
class ProgressLog {
 public:
  using Time = std::chrono::system_clock::time_point;

  // `job` is the scheduler's name for it, or empty.
  ProgressLog(std::filesystem::path file, std::string job, int world_size)
      : file_(std::move(file)), job_(std::move(job)), world_size_(world_size) {}

  // Appends one line. Throws DataError if the file cannot be written.
  void append(const std::string& text, Time now) const;

  // The begin of the jobs of this size: the time, to the second, and the operations of the last checkpoint before it.
  struct Start {
    Time time;
    double flops = 0;
  };
  // std::nullopt if the file has no such job. Lines that are not of this form are passed over.
  std::optional<Start> first_job() const;

 private:
  std::filesystem::path file_;
  std::string job_;
  int world_size_;
};

// Writes the file on world process zero; does nothing on other ranks.
class ProgressLogCallback : public train::TrainerCallback {
 public:
  // `folder` is that of the run; one sample has `sequence_length` tokens.
  ProgressLogCallback(std::filesystem::path folder, int world_size, int64_t sequence_length)
      : folder_(std::move(folder)), world_size_(world_size), sequence_length_(sequence_length) {}

  void on_train_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_save_begin(train::TrainerEvent& event) override;
  void on_save(train::TrainerEvent& event) override;

 private:
  std::string throughputs(const train::TrainerState& state) const;
  bool is_of_run(const std::filesystem::path& checkpoint) const;  // and not a non-persistent one
  void append(const std::string& text) const;
  void note_deleted();

  const std::filesystem::path folder_;
  const int world_size_;
  const int64_t sequence_length_;
  // Set when training begins, on the rank that writes.
  std::optional<ProgressLog> log_;
  ProgressLog::Time begin_{};
  double begin_flops_ = 0;
  double samples_ = 0;         // consumed by the run so far
  std::set<int64_t> saved_{};  // steps whose checkpoints exist
};

}  // namespace megalith::observe
