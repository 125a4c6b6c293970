// InsideFile: opens a file of a run's folder for reading such that nothing outside the folder can be reached.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace megalith::observe {

// Identifies a file and its state: changes when the file is replaced or modified. Two equal versions mean that nothing
// has to be read again.
struct FileVersion {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t changed_ns = 0;  // last modification, since 1970
  bool operator==(const FileVersion&) const = default;
};

// Read-only; the file may grow, shrink or disappear meanwhile. Links are followed as long as they end inside the
// folder.
class InsideFile {
 public:
  // Opens `name` below `folder`, which is canonical; std::nullopt when there is no such file. Throws DataError when it
  // lies outside (through a link or ..), is not a regular file (a FIFO, a device), or cannot be opened.
  static std::optional<InsideFile> open(const std::filesystem::path& folder, const std::string& name);
  ~InsideFile();
  InsideFile(InsideFile&& other) noexcept;
  InsideFile& operator=(InsideFile&& other) = delete;

  // Returns the state of the file when it was opened.
  const FileVersion& version() const { return version_; }
  // Returns the number of bytes read, which is smaller than `bytes` only at the end of the file. Throws DataError.
  size_t read_at(uint64_t offset, char* to, size_t bytes) const;
  // Returns the whole file as it was when opened. Throws DataError when it has more than `most_bytes`.
  std::string text(uint64_t most_bytes) const;

 private:
  // Takes ownership of the descriptor.
  InsideFile(std::filesystem::path path, int descriptor);

  std::filesystem::path path_;  // for messages
  int descriptor_;
  FileVersion version_;
};

}  // namespace megalith::observe
