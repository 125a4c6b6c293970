// IndexedWriter: makes a pair of files PREFIX.bin and PREFIX.idx, byte for byte as Megatron's IndexedDatasetBuilder.
//
//   StagedFiles files;
//   IndexedWriter writer(files, prefix, TokenType::kUint16);
//   for (document) { writer.add_sequence(ids); writer.end_document(); }
//   writer.finish();
//   files.commit();
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/data/indexed/indexed_dataset.h"
#include "megalith/data/indexed/staged_files.h"

namespace megalith::data {

// One thread at a time. Holds 4 bytes a sequence and 8 bytes a document, and a block of tokens.
class IndexedWriter {
 public:
  // The files are created in `files`, which outlives this object.
  IndexedWriter(StagedFiles& files, const std::string& prefix, TokenType type);

  // Throws DataError for an id that is negative or that the token type cannot hold.
  void add_sequence(std::span<const int32_t> ids);
  // The sequences since the last call are a document; there may be none.
  void end_document();
  // All sequences and documents of another pair, whose tokens are stored in the same way (DataError otherwise). The
  // pair is checked first.
  void append(const IndexedDataset& other);
  // Writes what is left, and the .idx file. Nothing may be added afterwards.
  void finish();

  int64_t sequence_count() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t document_count() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t token_count() const { return tokens_; }
  TokenType token_type() const { return type_; }
  const std::string& prefix() const { return prefix_; }

 private:
  void flush();

  std::string prefix_;
  TokenType type_;
  const io::FileHandle& bin_;
  const io::FileHandle& idx_;
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0;  // bytes of the .bin file
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
  int64_t tokens_ = 0;
};

// One pair with the content of all, in their order. Throws DataError, and leaves nothing behind, when one is damaged or
// stores its tokens in another way than the first; ConfigError when the output is one of the inputs.
void merge_indexed(std::span<const std::string> prefixes, const std::string& output, StagedFiles& files);

}  // namespace megalith::data
