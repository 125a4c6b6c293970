// LocalSaves: save points on the machines' own disks (non_persistent_ckpt_type local). Each rank writes what it holds
// into a folder that no other rank touches, so no file system is shared and, without copies, nothing is sent:
//
//   FOLDER/rank-00007/checkpoint-100/part-rank-00007.safetensors   the state of rank 7 (state_parts.h)
//                                    part-rank-00003.safetensors   a copy of rank 3's, with replication
//                                    manifest.json                 layout and checksums
//
// They serve to continue after a failure, in the same layout; the newest is kept. A machine that is lost takes its
// ranks' parts with it, unless ranks of another machine hold copies. At the next start ranks look for the newest step
// of which every part is left somewhere, and parts that are elsewhere are sent to their ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/state_parts.h"

namespace megalith::train {

// Used by one thread per rank; all ranks call the same functions in the same order. `context` must outlive it.
class LocalSaves {
 public:
  // `layout` is that of the run; parts of another one are not used. Touches no file.
  LocalSaves(const LocalSaveSettings& settings, const checkpoint::SavedLayout& layout,
             const parallel::ParallelContext& context);

  // Returns this rank's folder for a step.
  std::filesystem::path folder_of(int64_t step) const;
  // Writes the state after step `state.global_step`, sends copies to the other holders and, when all ranks have theirs,
  // removes older ones. Returns the bytes that this rank has written, with copies of others. Throws a DataError, the
  // same on all ranks, that names each rank that failed; older save points are then still there. Collective.
  uint64_t save(OptimizedModel& model, const TrainerState& state, RunProgress progress);

  // Returns the newest state of which all parts are whole; std::nullopt if there is none, or if its step is before
  // `oldest`. Damaged and unsuitable parts are named in the log of rank 0. Collective.
  std::optional<ResumePoint> load(int64_t oldest);
  // Removes everything that an earlier run left, so that a failure before the first save cannot bring it back.
  void clear() const;

 private:
  // For a step, the ranks whose folders hold the part of each rank.
  using Holders = std::map<int, std::vector<int>>;

  void write_own(OptimizedModel& model, const StateTexts& texts, const std::filesystem::path& folder);
  // `problem` gets the message of the first failure, if it is still empty.
  void copy_between_holders(const std::filesystem::path& folder, std::string& problem);
  // Throws the DataError that save() promises if `mine` or the text of another rank is not empty.
  void agree(const std::string& mine, int64_t step) const;
  // Returns the holders by step, newest first, and describes on rank 0 what cannot be used.
  std::map<int64_t, Holders, std::greater<>> find_parts() const;
  // Returns the rank that each rank gets its part from, after those ranks have verified the parts; empty if a part is
  // not left whole anywhere.
  std::vector<int> sources(int64_t step, Holders holders) const;
  void fetch(int64_t step, const std::vector<int>& sources) const;
  ResumePoint read(int64_t step) const;

  const LocalSaveSettings settings_;
  const checkpoint::SavedLayout layout_;
  const parallel::ParallelContext& context_;
  const std::filesystem::path mine_;             // FOLDER/rank-R
  std::vector<checkpoint::FileRecord> records_;  // files that the running save has written
};

// Returns the ranks that hold copies of one another's parts: `copies` ranks, `jump` apart, among which is `rank`.
// `world_size` is a multiple of copies × jump.
std::vector<int> ranks_with_copies(int rank, int copies, int jump);

}  // namespace megalith::train
