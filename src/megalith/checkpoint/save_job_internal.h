// Saver::Job: one save, step by step. See saver.h.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <unordered_map>

#include "megalith/checkpoint/chunk_sums.h"
#include "megalith/checkpoint/copy_stream.h"
#include "megalith/checkpoint/saver.h"
#include "megalith/io/staged_folder.h"

namespace megalith::checkpoint {

// All ranks call the constructor and finish() together; everything between concerns one rank alone.
class Saver::Job {
 public:
  // Plans the save and creates the files. Collective.
  Job(const parallel::ParallelContext& context, SaveRequest request);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Writes this rank's share. An error is kept for finish().
  void write();
  // Starts a thread that copies the share into `buffer` on the host, which grows as needed, and writes it.
  void write_in_background(at::Tensor& buffer);
  // After it returns, work queued on the caller's stream may change the tensors.
  void finish_copy();
  bool is_written() const { return written_; }

  // Waits until this rank's share is written, exchanges errors with all ranks and completes the save. Collective.
  SaveReport finish();

 private:
  using Clock = std::chrono::steady_clock;
  // The files of one stem.
  struct Files {
    std::unique_ptr<hf::WeightWriter> writer;         // nullptr for a rank's own file that would be empty
    std::vector<ChunkSums> sums;                      // by file of the writer
    std::vector<int64_t> elements;                    // by tensor: number of elements that this rank wrote
    std::vector<uint64_t> positions;                  // by tensor: sum of the flat indices of those elements
    std::vector<size_t> mine;                         // indices of held rectangles that this rank writes
    std::unordered_map<std::string, size_t> numbers;  // index of each tensor, by name
  };

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // In the order of save_job.cc, which says which of them are collective.
  void plan_files();
  void make_writer(size_t number, const std::vector<hf::WeightSpec>& tensors, hf::WeightWriterOptions options);
  void plan_own_files();
  std::string own_records() const;
  void make_files();
  void share();
  void write_share();
  void copy_share(at::Tensor& buffer);
  void keep_error(const std::function<void()>& part);  // runs `part`; keeps the first error of the save
  void agree_on_errors(const std::string& mine) const;
  void join_sums();
  void check_coverage() const;
  std::vector<FileRecord> records() const;
  void complete();

  const parallel::ParallelContext& context_;
  const comm::Group everyone_;
  SaveRequest request_;
  const io::StagedFolder place_;            // the path of the folder that all ranks write into
  std::optional<io::StagedFolder> staged_;  // rank 0: owns that folder
  std::vector<Files> files_;
  const Clock::time_point start_ = Clock::now();
  bool in_background_ = false;  // set before the thread starts
  double stalled_seconds_ = 0;
  uint64_t bytes_ = 0;                 // rank 0: size of the whole folder
  std::vector<FileRecord> own_files_;  // rank 0: records of the files that single ranks wrote

  std::string error_;  // the first error of this rank; read after written_ is set
  std::atomic<bool> written_ = false;
  CopyStream copies_;
  std::vector<at::Tensor> originals_;        // used by the thread: kept alive until they are copied
  std::atomic<bool> copies_queued_ = false;  // set by the thread, even after an error
  bool held_back_ = false;                   // used by the caller: its stream waits for the copies
  std::thread thread_;                       // the background writer; last, since it uses the other members
};

}  // namespace megalith::checkpoint
