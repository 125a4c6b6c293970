// Saver: a checkpoint folder written by all ranks at once, there as a whole or not at all.
//
//   Saver saver(context);
//   saver.save(request);                        // returns when it is on the disk, under its name
//
//   saver.start(request);                       // in the background: returns when the files are made
//   while (training) {
//     forward_backward();
//     saver.finish_copy();                      // the state may change now: what follows comes after its copy
//     update();
//     if (saver.busy()) saver.poll();
//   }
//   if (saver.busy()) saver.wait();
//
// Every datum is written once, straight to its place in a shared file or into the rank's own, by one of the ranks that
// hold it (share_work.h); nothing is gathered. Checksums are taken of what lies in memory (chunk_sums.h) and joined in
// one all-reduce, which also shows that every element of every tensor was written exactly once.
//
// Order on disk: files in <folder>.tmp-save, synced; manifest.json; rename; the tracker (run_folder.h). A failure on
// any rank is an error on all of them, with nothing left behind and nothing older touched.
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
  std::string stem;                     // also its name in the manifest's "holds"
  std::vector<hf::WeightSpec> tensors;  // the same on all ranks
  std::vector<hf::HeldRectangle> held;  // what this rank has; read until the save has ended or is copied
  bool one_file = false;                // however large it is
  // Each rank writes what it holds into a file of its own, <stem>-rank-00007.safetensors, from front to back, instead
  // of into the places of shared files. Only StateFiles reads that (pieces.h).
  bool per_writer = false;
};

struct SaveRequest {
  std::filesystem::path folder;  // run folder/checkpoint-S; one that is there is replaced
  int64_t step = 0;
  SavedLayout layout;
  std::vector<TensorFiles> tensors;
  // Called on rank 0, by the thread that writes, with the folder that is being filled: writes what is no tensor.
  std::function<void(const std::filesystem::path& folder)> other_files{};
  uint64_t max_shard_bytes = 5'000'000'000;
};

struct SaveReport {
  std::filesystem::path folder;
  int64_t step = 0;
  uint64_t bytes = 0;          // of all files
  double stalled_seconds = 0;  // that this rank's caller has waited, on the host
  double total_seconds = 0;    // from the call to the complete folder
};

// One thread a rank; all ranks call the same functions in the same order. `context` outlives it.
class Saver {
 public:
  explicit Saver(const parallel::ParallelContext& context);
  // A save that has not ended is given up.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Throws DataError, the same on all ranks, naming the rank and what the system said (disk full, …).
  SaveReport save(SaveRequest request);

  // Requires !busy(). The state is copied to the host by a thread, which then writes it: it must not change before
  // finish_copy(). From a device it is copied by a stream of its own, as it is after what this thread's stream has been
  // given so far. Throws as save() does for what goes wrong at once.
  void start(SaveRequest request);
  bool busy() const { return job_ != nullptr; }
  // From its return on the state may change. In host memory it is copied then; on a device the copy is queued, and this
  // thread's stream waits for it, not the host. At once when nothing goes on.
  void finish_copy();
  // Requires busy(). When the writers of all ranks are through: ends the save. Nothing: they are not. Throws as save()
  // does; the save is then given up.
  std::optional<SaveReport> poll();
  // The same, and waits for the writers.
  SaveReport wait();

 private:
  class Job;

  const parallel::ParallelContext& context_;
  at::Tensor host_copy_;  // bytes; of the last save in the background, for the next
  std::unique_ptr<Job> job_;
};

// The random state of each rank as tensors "rank-0", … of bytes. All ranks call it.
TensorFiles rng_files(const parallel::ParallelContext& context, const std::string& state);

}  // namespace megalith::checkpoint
