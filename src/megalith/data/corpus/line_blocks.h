// LineBlocks: the lines of several inputs, in blocks of whole lines.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "megalith/data/corpus/byte_source.h"

namespace megalith::data {

struct LineBlock {
  std::string input;       // the name of the file
  int64_t first_line = 1;  // number of the first line in its file, from 1
  std::string text;        // whole lines with their ends; the last one of a file may have none
};

// One thread at a time. Holds one block and one unfinished line.
class LineBlocks {
 public:
  explicit LineBlocks(std::vector<std::string> inputs, size_t block_bytes = size_t{1} << 20);

  // The next block, of some `block_bytes` (more when a line is longer); nothing behind the last input. Throws DataError
  // as ByteSource does, and for a line of more than 1 GiB.
  std::optional<LineBlock> next(const std::stop_token& stop = {});

 private:
  std::optional<LineBlock> take(size_t bytes);

  std::vector<std::string> inputs_;
  size_t block_bytes_;
  size_t current_ = 0;  // of inputs_
  std::unique_ptr<ByteSource> source_;
  std::string held_;  // read, and not yet given out
  int64_t line_ = 1;  // number of the first line in held_
};

}  // namespace megalith::data
