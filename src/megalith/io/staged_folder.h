// StagedFolder: an output folder that is there complete or not at all.
//
//   StagedFolder staged(target, "export-4711", {.owner = rank == 0});   // all ranks, the same target and tag
//   barrier
//   … all ranks write into staged.path() …
//   barrier
//   staged.commit();                                                     // the owner renames it; nothing on other
//   ranks
//
// Until then everything lies in <target>.tmp-<tag>, beside the target and so on the same file system. Whatever is not
// committed is removed with the object, also when an exception passes. What a killed run left behind under the same
// tag is removed by the next.
#pragma once

#include <filesystem>
#include <string>

namespace megalith::io {

struct StagedFolderOptions {
  bool owner = true;       // makes, renames and removes the folder; one rank
  bool overwrite = false;  // the target may be there: it is replaced as a whole, with everything in it
};

class StagedFolder {
 public:
  // The owner makes the folder (and the target's parents). Throws ConfigError, on the owner, when the target is a file,
  // or a folder with something in it and not to be overwritten. `tag` is of letters, digits, '.', '_' and '-'.
  StagedFolder(const std::filesystem::path& target, const std::string& tag, StagedFolderOptions options = {});
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Where to write; the same on all ranks.
  const std::filesystem::path& path() const { return staging_; }
  const std::filesystem::path& target() const { return target_; }

  // Brings everything in the folder to the disk and gives it its name. A target that is to be overwritten is exchanged
  // in one step where the file system can; elsewhere it is called <target>.old-<tag> for a moment.
  void commit();

 private:
  void check_target() const;
  void replace_target() const;

  std::filesystem::path target_, staging_, old_;
  StagedFolderOptions options_;
  bool committed_ = false;
};

}  // namespace megalith::io
