// LineTail: the lines of a file that somebody else appends to, each once.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/observe/dashboard/inside_file.h"

namespace megalith::observe {

// Notices what happens to files of running jobs: they appear, grow, are cut (a resumed run drops the lines of steps
// that it does again), are replaced by another file, or go. One thread.
class LineTail {
 public:
  enum class Change {
    kNone,
    kGrown,        // there are new lines
    kStartedAnew,  // what was read before is no longer in the file; `line` has got all lines of what is there now
  };
  // The file `name` below `folder`, which is canonical; it need not be there.
  LineTail(std::filesystem::path folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

  // Calls `line` with each complete line that is new, without its end; one that has no end yet is left for later, and
  // one of more than kMostLineBytes is given in pieces, the first of them empty. `start_anew` is called before the
  // first line when what was given earlier does not count any more. Throws DataError (see InsideFile); what was read
  // before stays.
  Change poll(const std::function<void(std::string_view)>& line, const std::function<void()>& start_anew);

  bool exists() const { return version_.has_value(); }
  uint64_t bytes() const { return done_; }  // in complete lines that were read
  int64_t changed_ns() const { return version_ ? version_->changed_ns : 0; }

  static constexpr size_t kMostLineBytes = 1 << 22;

 private:
  bool continues(const InsideFile& file) const;
  void read(const InsideFile& file, const std::function<void(std::string_view)>& line);

  std::filesystem::path folder_;
  std::string name_;
  std::optional<FileVersion> version_;
  uint64_t done_ = 0;      // where the first line begins that was not given
  std::string last_read_;  // the bytes before done_, by which a rewritten file is told from one that grew
};

}  // namespace megalith::observe
