// LineBlocks: reads several inputs in blocks of whole lines.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "megalith/data/corpus/byte_source.h"
#include "megalith/data/table/table_reader.h"

namespace megalith::data {

// A block of whole lines of one input. Blocks never span two inputs, so a line number is enough to find a bad line.
struct LineBlock {
  std::string input;       // the name of the file
  int64_t first_line = 1;  // number of the first line within the file, counted from 1
  std::string text;        // whole lines with their line ends; the last one of a file may have none
  bool is_table = false;   // lines are the rows of a table, as JSON
};

// Not thread-safe. Holds one block and one incomplete line in memory.
class LineBlocks {
 public:
  // `inputs` are read one after the other, each opened when its turn comes ("-" is stdin). A table (table_reader.h), by
  // its name, is read as lines of JSON, one per row; anything else has lines of its own.
  explicit LineBlocks(std::vector<std::string> inputs, size_t block_bytes = size_t{1} << 20);

  // Returns the next block, of about `block_bytes` (more if a line is longer); std::nullopt after the last input.
  // Throws a DataError like ByteSource and TableReader, and for a line of more than 1 GiB.
  std::optional<LineBlock> next(const std::stop_token& stop = {});

 private:
  // Returns the next rows of the table in progress; std::nullopt at its end.
  std::optional<LineBlock> next_rows();
  // Returns the first `bytes` of held_ as a block and counts their lines; std::nullopt for 0.
  std::optional<LineBlock> take(size_t bytes);

  // The input in progress is inputs_[current_]; held_ never contains bytes of two inputs.
  std::vector<std::string> inputs_;
  size_t block_bytes_;
  size_t current_ = 0;  // index into inputs_
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<TableReader> table_;
  std::string held_;  // read and not yet returned
  int64_t line_ = 1;  // number of the first line in held_
};

}  // namespace megalith::data
