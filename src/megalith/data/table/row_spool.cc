#include "megalith/data/table/row_spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <span>
#include <system_error>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"

namespace megalith::data {
namespace {

// Texts are gathered up to this size: a write per row would cost more than the row.
constexpr size_t kSpoolWriteBytes = size_t{4} << 20;

}  // namespace

// A temporary file that loses its name as soon as it is open.
class RowSpool::NamelessFile {
 public:
  explicit NamelessFile(std::filesystem::path folder) {
    if (folder.empty()) folder = std::filesystem::temp_directory_path();
    io::make_folders(folder);
    name_ = (folder / "megalith-rows-XXXXXX").string();
    descriptor_ = ::mkostemp(name_.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail("create");
    ::unlink(name_.c_str());
  }
  ~NamelessFile() { ::close(descriptor_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  void write_at(uint64_t offset, std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write");
      offset += static_cast<uint64_t>(written);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }

  void read_at(uint64_t offset, std::span<char> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail("read");
      offset += static_cast<uint64_t>(got);
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw DataError(fmt::format("cannot {} the temporary file {}: {}; its folder needs room for the text of the table",
                                what, name_, std::generic_category().message(errno)));
  }

  std::string name_;  // for messages
  int descriptor_ = -1;
};

RowSpool::RowSpool(std::filesystem::path path, int64_t size, std::filesystem::path scratch_folder)
    : path_(std::move(path)), size_(size), scratch_folder_(std::move(scratch_folder)) {}

RowSpool::~RowSpool() = default;

// Reads a few MB more than asked for: rows are mostly asked for in their order. An error leaves what was written, so
// that the rows before it can be read.
void RowSpool::read_up_to(int64_t index) const {
  if (!file_) {
    file_ = std::make_unique<NamelessFile>(scratch_folder_);
    table_ = open_table(path_);
  }
  std::string gathered, row;
  std::vector<uint64_t> ends;
  uint64_t written = ends_.empty() ? 0 : ends_.back();
  int64_t number = 0;
  while (std::ssize(ends_) <= index) {
    const int64_t rows = std::ssize(ends_) + std::ssize(ends);
    check<DataError>(table_->next(row, number), "{} has {} rows, not the {} that it says", path_.string(), rows, size_);
    gathered += row;
    ends.push_back(written + gathered.size());
    if (gathered.size() < kSpoolWriteBytes && rows + 1 < size_) continue;
    file_->write_at(written, gathered);
    written += std::exchange(gathered, {}).size();
    ends_.insert(ends_.end(), ends.begin(), ends.end());
    ends.clear();
  }
  if (std::ssize(ends_) == size_) table_.reset();
}

std::string RowSpool::text(int64_t index) const {
  check(index >= 0 && index < size_, "row {} of {} does not exist", index, size_);
  uint64_t begin = 0, end = 0;
  {
    const std::lock_guard lock(mutex_);
    if (std::ssize(ends_) <= index) read_up_to(index);
    begin = index == 0 ? 0 : ends_[static_cast<size_t>(index) - 1];
    end = ends_[static_cast<size_t>(index)];
  }
  std::string text(end - begin, '\0');
  file_->read_at(begin, text);
  return text;
}

}  // namespace megalith::data
