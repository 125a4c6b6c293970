// Cutting a file at line ends is the only sequential part of tokenizing it, so it does no more than that: it looks for
// the last '\n' of what was read, and hands out everything before it.
#include "megalith/data/corpus/line_blocks.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::data {

namespace {

constexpr size_t kReadBytes = size_t{1} << 18;    // per read: a full pipe or a part of a file
constexpr size_t kLongestLine = size_t{1} << 30;  // bounds the memory for input that is not text

}  // namespace

LineBlocks::LineBlocks(std::vector<std::string> inputs, size_t block_bytes)
    : inputs_(std::move(inputs)), block_bytes_(block_bytes) {}

// Reads until a block is full and ends with a whole line. Blocks never span two inputs, so that lines can be counted.
std::optional<LineBlock> LineBlocks::next(const std::stop_token& stop) {
  size_t line_bytes = 0;  // bytes of whole lines in held_; between calls it holds only an incomplete line
  while (current_ < inputs_.size()) {
    if (table_format(inputs_[current_])) {
      if (auto block = next_rows()) return block;
      ++current_;
      continue;
    }
    if (!source_) source_ = open_bytes(inputs_[current_], stop);
    const size_t filled = held_.size();
    held_.resize(filled + std::min(block_bytes_, kReadBytes));
    held_.resize(filled + source_->read(std::span(held_).subspan(filled)));
    if (held_.size() == filled) {  // the end of this input
      // Whatever is held is the last block of this input, even if its last line has no end.
      auto block = take(filled);
      source_.reset();
      ++current_;
      line_ = 1;
      line_bytes = 0;
      if (block) return block;
      continue;
    }
    const size_t end = std::string_view(held_).substr(filled).rfind('\n');
    if (end != std::string_view::npos) line_bytes = filled + end + 1;
    if (held_.size() >= block_bytes_ && line_bytes > 0) return take(line_bytes);
    check<DataError>(held_.size() - line_bytes <= kLongestLine,
                     "{} line {}: more than 1 GiB without an end of line; is this JSON with one object per line?",
                     inputs_[current_], line_);
  }
  return std::nullopt;
}

// The end of a table resets line_, as the end of any input does.
std::optional<LineBlock> LineBlocks::next_rows() {
  if (!table_) table_ = open_table(inputs_[current_]);
  LineBlock block{.input = inputs_[current_], .first_line = line_, .text = {}, .is_table = true};
  std::string row;
  int64_t number = 0;
  while (block.text.size() < block_bytes_ && table_->next(row, number)) {
    block.text += row;
    block.text += '\n';
    ++line_;
  }
  if (!block.text.empty()) return block;
  table_.reset();
  line_ = 1;
  return std::nullopt;
}

// Removes the first `bytes` from held_ and returns them as a block.
std::optional<LineBlock> LineBlocks::take(size_t bytes) {
  if (bytes == 0) return std::nullopt;
  LineBlock block{.input = inputs_[current_], .first_line = line_, .text = held_.substr(0, bytes)};
  held_.erase(0, bytes);
  line_ += std::ranges::count(block.text, '\n');
  return block;
}

}  // namespace megalith::data
