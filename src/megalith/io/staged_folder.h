// StagedFolder: an output folder that appears complete or not at all.
//
//   StagedFolder staged(target, "export-4711", {.owner = rank == 0});   // all ranks, same target and tag
//   barrier
//   … all ranks write into staged.path() …
//   barrier
//   staged.commit();                                                    // the owner renames; no effect on other ranks
//
// Until then everything lies in <target>.tmp-<tag>, beside the target and so on the same file system. A folder that is
// not committed is removed with the object, also when an exception passes. Leftovers of a killed run are removed by the
// next run with the same tag.
#pragma once

#include <filesystem>
#include <string>

namespace megalith::io {

// How a rank takes part.
struct StagedFolderOptions {
  bool owner = true;       // creates, renames and removes the folder; true on one rank
  bool overwrite = false;  // replace an existing target with everything in it
};

// One object per rank. The ranks' calls are ordered by the caller's barriers, as in the example above.
class StagedFolder {
 public:
  // The owner creates the folder and the target's parents. Throws ConfigError, on the owner, when the target is a file,
  // or a non-empty folder and `overwrite` is not set. `tag` consists of letters, digits, '.', '_' and '-'.
  StagedFolder(const std::filesystem::path& target, const std::string& tag, StagedFolderOptions options = {});
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Returns the folder to write into; the same on all ranks.
  const std::filesystem::path& path() const { return staging_; }
  const std::filesystem::path& target() const { return target_; }

  // Syncs everything in the folder to disk and renames it to the target. A target that is overwritten is exchanged in
  // one step where the file system can; elsewhere it is called <target>.old-<tag> for a moment.
  void commit();

 private:
  void check_target() const;
  void replace_target() const;

  std::filesystem::path target_, staging_, old_;
  StagedFolderOptions options_;
  bool committed_ = false;
};

}  // namespace megalith::io
