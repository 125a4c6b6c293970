// RowSpool: random access to the rows of a table that can only be read from the front.
#pragma once

#include <mutex>
#include <vector>

#include "megalith/data/table/table_reader.h"

namespace megalith::data {

// Rows are read in order, up to the one that is asked for, and their texts are appended to a temporary file; asked for
// again, they come from there. The file has no name, so a process that is killed leaves nothing behind. 8 bytes of
// memory per row that was read. Thread-safe: one thread decodes while others wait, and reading back takes no lock.
class RowSpool final : public TableFile {
 public:
  // The table `path` has `size` rows; it is opened when the first one is asked for. An empty `scratch_folder` means the
  // system's folder for temporary files.
  RowSpool(std::filesystem::path path, int64_t size, std::filesystem::path scratch_folder);
  ~RowSpool() override;

  int64_t size() const override { return size_; }
  // Throws a DataError like the table, and if the temporary file cannot be written.
  std::string text(int64_t index) const override;
  int64_t number(int64_t index) const override { return index + 1; }

 private:
  class NamelessFile;
  // Reads rows until row `index` is in the file. The mutex is held.
  void read_up_to(int64_t index) const;

  std::filesystem::path path_;
  int64_t size_;
  std::filesystem::path scratch_folder_;

  mutable std::mutex mutex_;                    // guards the members below
  mutable std::unique_ptr<TableReader> table_;  // while rows are left to read
  mutable std::unique_ptr<NamelessFile> file_;  // from the first row on; its bytes never change once they are written
  mutable std::vector<uint64_t> ends_;          // offsets in it, one per row
};

}  // namespace megalith::data
