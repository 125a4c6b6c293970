// EventFile: TensorBoard's event files, written by hand: TFRecords of Event messages (tensorboard/compat/proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "megalith/io/file_io.h"

namespace megalith::observe {

struct EventFileOptions {
  double wall_time = 0;   // seconds since 1970 of the file's start, in its name
  std::string host = "";  // in its name; empty: this machine's
  int64_t purge_step =
      -1;  // >= 0: TensorBoard forgets what earlier files of the folder say of this step and later ones
};

// One file, `events.out.tfevents.<seconds>.<host>.<process>.<n>` in a folder; n is the first number that is free. Every
// call reaches the file before it returns. Throws DataError.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder, const EventFileOptions& options = {});

  const std::filesystem::path& path() const { return file_.path(); }
  // A point of a curve. `wall_time` in seconds since 1970; TensorBoard has single precision.
  void add_scalar(std::string_view tag, double value, int64_t step, double wall_time);
  // Markdown, shown under "Text".
  void add_text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time);

 private:
  void add_record(const std::string& event);

  io::FileHandle file_;
  uint64_t bytes_ = 0;  // written so far
};

}  // namespace megalith::observe
