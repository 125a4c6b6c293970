// Saver: writes a checkpoint folder with all ranks in parallel. The folder appears complete or not at all.
//
//   Saver saver(context);
//   saver.save(request);                        // returns when the checkpoint is on disk under its final name
//
//   saver.start(request);                       // in the background: returns when the files are created
//   while (training) {
//     forward_backward();
//     saver.finish_copy();                      // the state may change now: later work runs after the copy
//     update();
//     if (saver.busy()) saver.poll();
//   }
//   if (saver.busy()) saver.wait();
//
// Every rectangle is written once, by one of the ranks that hold it (share_work.h), straight to its place in a shared
// file or into the rank's own file; nothing is gathered. Checksums are computed from the data in memory (chunk_sums.h)
// and combined in one all-reduce, which also proves that every element of every tensor was written exactly once.
//
// Order on disk: files in <folder>.tmp-save, synced; manifest.json; rename; the tracker (run_folder.h). A failure on
// any rank is an error on all ranks; it leaves no files behind and does not touch older checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::checkpoint {

// Tensors that share files: <stem>.safetensors, or <stem>-00001-of-00003.safetensors, …
struct TensorFiles {
  std::string stem;                     // also the entry in the manifest's "holds"
  std::vector<hf::WeightSpec> tensors;  // the same on all ranks
  std::vector<hf::HeldRectangle> held;  // rectangles on this rank; read until the save has ended or the data is copied
  bool one_file = false;                // never split into shards, however large
  // Each rank writes what it holds into its own file, <stem>-rank-00007.safetensors, sequentially, instead of into
  // shared files. Only StateFiles can read these files (pieces.h).
  bool per_writer = false;
};

// Everything that goes into one checkpoint.
struct SaveRequest {
  std::filesystem::path folder;  // run folder/checkpoint-S; an existing one is replaced
  int64_t step = 0;
  SavedLayout layout;
  std::vector<TensorFiles> tensors;
  // Writes all files without tensors. Called on rank 0 by the writing thread, with the temporary folder.
  std::function<void(const std::filesystem::path& folder)> other_files{};
  uint64_t max_shard_bytes = 5'000'000'000;
};

// The outcome of one save.
struct SaveReport {
  std::filesystem::path folder;
  int64_t step = 0;
  uint64_t bytes = 0;          // total size of all files
  double stalled_seconds = 0;  // time for which this rank's caller was blocked, on the host
  double total_seconds = 0;    // from the call to the complete folder
};

// Used by one thread per rank; all ranks must call the same functions in the same order. `context` must outlive it.
class Saver {
 public:
  explicit Saver(const parallel::ParallelContext& context);
  // Abandons a save that has not been completed.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Saves and waits for the result. Throws a DataError, the same on all ranks, that names the rank and the system's
  // message (disk full, …).
  SaveReport save(SaveRequest request);

  // Starts a save in the background; requires !busy(). A thread copies the state to the host and then writes it. The
  // state must not change before finish_copy(). A device copies it on a separate stream, after the work queued on this
  // thread's stream so far. Throws like save() if the files cannot be created.
  void start(SaveRequest request);
  bool busy() const { return job_ != nullptr; }
  // After it returns, the state may change. State in host memory has been copied by then; for state on a device the
  // copy is queued, and this thread's stream waits for it, not the host. Returns at once if no save is in flight.
  void finish_copy();
  // Completes the save if the writers of all ranks have finished; otherwise returns std::nullopt. Requires busy().
  // Collective. Throws like save(); the save is then abandoned.
  std::optional<SaveReport> poll();
  // Waits for the writers and completes the save. Requires busy(). Throws like poll().
  SaveReport wait();

 private:
  class Job;

  const parallel::ParallelContext& context_;
  at::Tensor host_copy_;  // bytes; the buffer of background saves, reused by the next one
  std::unique_ptr<Job> job_;
};

// Returns the random states of all ranks as byte tensors "rank-0", …, of which this rank holds its own. Collective.
TensorFiles rng_files(const parallel::ParallelContext& context, const std::string& state);

}  // namespace megalith::checkpoint
