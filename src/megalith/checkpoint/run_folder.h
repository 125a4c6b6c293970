// The checkpoints of a run: output_dir/checkpoint-S, the tracker output_dir/latest that names the newest complete one,
// and which of them are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace megalith::checkpoint {

inline constexpr const char* kTrackerName = "latest";

std::string folder_name(int64_t step);  // "checkpoint-10"

struct StepFolder {
  int64_t step = 0;
  std::filesystem::path folder;
  bool operator==(const StepFolder&) const = default;
};
// Folders that are called checkpoint-S, complete or not, by step. Temporary ones are not among them; none where there
// is no folder.
std::vector<StepFolder> list_checkpoints(const std::filesystem::path& run);

// Makes the tracker beside `checkpoint` name it. One rank.
void write_tracker(const std::filesystem::path& checkpoint);
// What it names; nothing without one. Throws DataError when it names nothing that a tracker would, or a folder that is
// not there.
std::optional<std::filesystem::path> read_tracker(const std::filesystem::path& run);
// What the tracker names or, without one, the last of those with a manifest; nothing when there is none.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run);

// Which checkpoints stay.
struct Retention {
  std::optional<int> total_limit;               // save_total_limit; nothing or 0: all
  std::optional<int64_t> retain_interval;       // save_retain_interval: only multiples, and the newest
  std::optional<std::filesystem::path> best{};  // stays in any case
};
// Those to remove, by Hugging Face's rule: the oldest go until total_limit are left; the best counts but stays, so that
// with a limit of 1 both the newest and the best do. `all` by step; the last is the newest.
std::vector<std::filesystem::path> to_remove(const std::vector<StepFolder>& all, const Retention& keep);

// One rank, after a save: removes what need not stay; each folder leaves its name in one step. What cannot be removed
// is returned, a sentence each; it is no reason to end a run.
std::vector<std::string> rotate(const std::filesystem::path& run, const Retention& keep);
// One rank, before a run: removes what an earlier process left half-written or half-removed.
void remove_leftovers(const std::filesystem::path& run);

}  // namespace megalith::checkpoint
