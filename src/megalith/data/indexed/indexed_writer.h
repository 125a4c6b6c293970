// IndexedWriter: writes a pair of files PREFIX.bin and PREFIX.idx, byte for byte like Megatron's IndexedDatasetBuilder.
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

// Not thread-safe. Holds 4 bytes per sequence and 8 bytes per document in memory, and a block of tokens.
class IndexedWriter {
 public:
  // The files are created in `files`, which must outlive this object.
  IndexedWriter(StagedFiles& files, const std::string& prefix, TokenType type);

  // Throws a DataError for an id that is negative or does not fit into the token type.
  void add_sequence(std::span<const int32_t> ids);
  // Ends a document, which consists of the sequences since the last call; it may be empty.
  void end_document();
  // Appends all sequences and documents of another pair, after checking it completely. Throws a DataError if its token
  // type differs.
  void append(const IndexedDataset& other);
  // Writes buffered tokens and the .idx file. Nothing may be added afterwards.
  void finish();

  // Totals of what has been added so far.
  int64_t sequence_count() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t document_count() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t token_count() const { return tokens_; }
  TokenType token_type() const { return type_; }
  const std::string& prefix() const { return prefix_; }

 private:
  // Writes the buffered tokens to the .bin file.
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

// Merges several pairs into one, in their order. Throws a DataError, without leaving files behind, if one is damaged or
// has another token type than the first; throws a ConfigError if the output is one of the inputs.
void merge_indexed(std::span<const std::string> prefixes, const std::string& output, StagedFiles& files);

}  // namespace megalith::data
