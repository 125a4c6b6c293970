// SequenceSource: numbered sequences of tokens, from a file or generated.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace megalith::data {

// Immutable and thread-safe. Tokens are read as int64 whatever their stored type, and are never negative.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  // The name used in messages.
  virtual const std::string& name() const = 0;
  // Returns the number of sequences; constant over the life of the source.
  virtual int64_t sequence_count() const = 0;
  // Returns the number of tokens in a sequence; requires 0 <= sequence < sequence_count().
  virtual int64_t length(int64_t sequence) const = 0;
  // Reads tokens [offset, offset + out.size()) of a sequence, which must exist. Throws a DataError for a damaged file.
  virtual void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const = 0;
};

}  // namespace megalith::data
