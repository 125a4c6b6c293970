// LineTail: reads the lines of a file to which another process appends, each line once.
//
//   LineTail tail(folder, "metrics.jsonl");
//   while (open) {
//     tail.poll([&](std::string_view line) { add(line); }, [&] { clear(); });
//     pause();
//   }
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/observe/dashboard/inside_file.h"

namespace megalith::observe {

// Follows everything that happens to files of running jobs: they appear, grow, are truncated (a resumed run drops the
// lines of steps that it repeats), are replaced by another file, or disappear. One thread.
class LineTail {
 public:
  // The result of poll().
  enum class Change {
    kNone,
    kGrown,        // there are new lines
    kStartedAnew,  // earlier lines are no longer in the file; `line` was called with all that are there now
  };
  // Follows the file `name` below `folder`, which is canonical; it need not exist yet. Opens nothing: the file is
  // opened for each poll, so a run may replace it at any time.
  LineTail(std::filesystem::path folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}

  // Calls `line` with each complete new line, without its end. A line without an end is left for later; one of more
  // than kMostLineBytes is passed in pieces, the first of them empty. Calls `start_anew` before the first line when
  // earlier lines no longer count. Throws DataError (see InsideFile); what was read before stays valid.
  Change poll(const std::function<void(std::string_view)>& line, const std::function<void()>& start_anew);

  // The state at the last poll: whether the file was there, how much of it has been passed on, and when it changed.
  bool exists() const { return version_.has_value(); }
  uint64_t bytes() const { return done_; }  // bytes of the complete lines that were read
  int64_t changed_ns() const { return version_ ? version_->changed_ns : 0; }

  // 4 MiB bound the memory for a file that is not made of lines.
  static constexpr size_t kMostLineBytes = 1 << 22;

 private:
  // Returns whether the file is the one read before, with something appended at most.
  bool continues(const InsideFile& file) const;
  // Passes on the complete lines from done_ up to the size that the file had when it was opened.
  void read(const InsideFile& file, const std::function<void(std::string_view)>& line);

  std::filesystem::path folder_;
  std::string name_;
  std::optional<FileVersion> version_;
  uint64_t done_ = 0;      // offset of the first line that was not passed on
  std::string last_read_;  // the bytes before done_: tell a rewritten file from one that grew
};

// Calls `line` with the lines of a file from byte `begin` up to byte `end`, which is the end of a line, until it
// returns false. Lines of more than LineTail::kMostLineBytes are skipped. Throws DataError (see InsideFile).
void read_lines(const std::filesystem::path& folder, const std::string& name, uint64_t begin, uint64_t end,
                const std::function<bool(std::string_view)>& line);

}  // namespace megalith::observe
