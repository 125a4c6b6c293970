// SequenceSource: numbered sequences of tokens, from a file or made up.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace megalith::data {

// Constant after construction; all functions may be called from several threads.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  // What messages call it.
  virtual const std::string& name() const = 0;
  virtual int64_t sequence_count() const = 0;
  // Tokens of a sequence; 0 <= sequence < sequence_count().
  virtual int64_t length(int64_t sequence) const = 0;
  // Tokens [offset, offset + out.size()) of a sequence; they must exist. Throws DataError for a damaged file.
  virtual void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const = 0;
};

}  // namespace megalith::data
