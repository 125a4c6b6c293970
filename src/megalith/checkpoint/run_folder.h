// The checkpoints of a run: output_dir/checkpoint-S for step S, the tracker output_dir/latest, which names the newest
// complete one, and the rule for which of them are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith::checkpoint {

inline constexpr const char* kTrackerName = "latest";

std::string folder_name(int64_t step);  // "checkpoint-10"

// A checkpoint folder and the step in its name.
struct StepFolder {
  int64_t step = 0;
  std::filesystem::path folder;
  bool operator==(const StepFolder&) const = default;
};
// Returns the folders named checkpoint-S, complete or not, sorted by step, without temporary ones. Empty if `run` does
// not exist.
std::vector<StepFolder> list_checkpoints(const std::filesystem::path& run);

// Makes the tracker in the parent folder name `checkpoint`. Called on one rank.
void write_tracker(const std::filesystem::path& checkpoint);
// Returns the folder that the tracker names; std::nullopt if there is no tracker. Throws a DataError if the tracker
// does not name a checkpoint, or names a folder that does not exist.
std::optional<std::filesystem::path> read_tracker(const std::filesystem::path& run);
// Returns the folder that the tracker names or, without a tracker, the newest one with a manifest; std::nullopt if
// there is none.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run);

// The rule for the checkpoints to keep.
struct Retention {
  std::optional<int> total_limit;               // save_total_limit; std::nullopt or 0 means all
  std::optional<int64_t> retain_interval;       // save_retain_interval: only multiples of it, and the newest
  std::optional<std::filesystem::path> best{};  // always kept
};
// Returns the checkpoints to remove, by Hugging Face's rule: the oldest first, until total_limit are left. The best one
// counts but is never removed, so a limit of 1 keeps both the newest and the best. `all` is sorted by step.
std::vector<std::filesystem::path> to_remove(const std::vector<StepFolder>& all, const Retention& keep);

// Removes the checkpoints that are not kept. Called on one rank after a save. Each folder loses its name in one atomic
// step. Returns a sentence for each folder that could not be removed; that is not a reason to end a run.
std::vector<std::string> rotate(const std::filesystem::path& run, const Retention& keep);
// Removes folders that an earlier process left half-written or half-removed. Called on one rank before a run.
void remove_leftovers(const std::filesystem::path& run);

}  // namespace megalith::checkpoint
