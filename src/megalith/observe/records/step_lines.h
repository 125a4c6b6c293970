// StepLines: a file of JSON objects, one per line, each with the "step" that it belongs to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "megalith/io/file_io.h"

namespace megalith::observe {

// Appends lines to the file. One thread. Lines are never changed once written, so a reader may keep its position.
class StepLines {
 public:
  // Opens or creates the file. Of an existing file, lines up to `resumed_step` stay: later lines are of steps that the
  // resumed run repeats, and a last line without its end was cut off by a crash. A run from the start (0) keeps none.
  // Throws DataError when a complete line is not a JSON object with a step: such a file is not ours to cut.
  StepLines(const std::filesystem::path& path, int64_t resumed_step);

  // Writes one line, given without its end, with one system call, so that a reader sees all of it or nothing. Throws
  // DataError when the disk is full or the file is gone.
  void append(std::string line);

 private:
  io::FileHandle file_;
  uint64_t bytes_ = 0;  // written so far
};

}  // namespace megalith::observe
