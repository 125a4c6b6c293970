// One save, step by step. See saver.h.
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

class Saver::Job {
 public:
  // Plans, and makes the files. Collective.
  Job(const parallel::ParallelContext& context, SaveRequest request);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Writes this rank's share. What goes wrong is kept for finish().
  void write();
  // Starts a thread that copies the share to the host, into `buffer`, which grows as needed, and writes it.
  void write_in_background(at::Tensor& buffer);
  // From the return on what the caller's stream is given may change the tensors.
  void finish_copy();
  bool is_written() const { return written_; }

  // Waits for this rank's share; agrees with all ranks; ends the save. Collective.
  SaveReport finish();

 private:
  using Clock = std::chrono::steady_clock;
  // The files of one stem.
  struct Files {
    std::unique_ptr<hf::WeightWriter> writer;         // empty for a rank's own file that would hold nothing
    std::vector<ChunkSums> sums;                      // of each file of the writer
    std::vector<int64_t> elements;                    // of each tensor: written by this rank
    std::vector<uint64_t> positions;                  // of each tensor: the sum of the places of those elements
    std::vector<size_t> mine;                         // numbers of held rectangles that this rank writes
    std::unordered_map<std::string, size_t> numbers;  // of tensors, by name
  };

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void plan_files();
  void make_writer(size_t number, const std::vector<hf::WeightSpec>& tensors, hf::WeightWriterOptions options);
  void plan_own_files();
  std::string own_records() const;
  void make_files();
  void share();
  void write_share();
  void copy_share(at::Tensor& buffer);
  void keep_error(const std::function<void()>& part);  // the first of a save
  void agree_on_errors(const std::string& mine) const;
  void join_sums();
  void check_coverage() const;
  std::vector<FileRecord> records() const;
  void complete();

  const parallel::ParallelContext& context_;
  const comm::Group everyone_;
  SaveRequest request_;
  const io::StagedFolder place_;            // says where everybody writes
  std::optional<io::StagedFolder> staged_;  // rank 0: the folder itself
  std::vector<Files> files_;
  const Clock::time_point start_ = Clock::now();
  double stalled_seconds_ = 0;
  uint64_t bytes_ = 0;                 // rank 0: of the whole folder
  std::vector<FileRecord> own_files_;  // rank 0: of the files that single ranks have written

  std::string error_;  // of the writer; read after written_
  std::atomic<bool> written_ = false;
  CopyStream copies_;
  std::vector<at::Tensor> originals_;        // the thread's, until their copies are done
  std::atomic<bool> copies_queued_ = false;  // set by the thread, whatever becomes of the copies
  bool held_back_ = false;                   // the caller's: its stream waits for the copies
  std::thread thread_;                       // the writer in the background; last: uses the others
};

}  // namespace megalith::checkpoint
