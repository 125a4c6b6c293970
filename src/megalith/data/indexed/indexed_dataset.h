// IndexedDataset: Megatron's pair of files PREFIX.bin and PREFIX.idx, mapped into memory.
//
//   const IndexedDataset corpus("data/corpus_text_document");   // without .bin and .idx
//   std::vector<int64_t> tokens(static_cast<size_t>(corpus.length(7)));
//   corpus.read(/*sequence=*/7, /*offset=*/0, tokens);
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/data/indexed/index_file.h"
#include "megalith/data/indexed/sequence_source.h"
#include "megalith/io/mapped_file.h"

namespace megalith::data {

// Return PREFIX.bin and PREFIX.idx.
std::filesystem::path bin_path(const std::string& prefix);
std::filesystem::path idx_path(const std::string& prefix);

// Opening checks the header and the sizes of both files, not every entry; check() does that. Whatever an entry says,
// nothing outside the files is read. The files must not change while they are open. Thread-safe: both files are mapped
// read-only.
class IndexedDataset final : public SequenceSource {
 public:
  // Throws a DataError that names the file and the byte if a file is missing or malformed. With `vocab_size`, reading a
  // token outside the vocabulary throws as well.
  explicit IndexedDataset(const std::string& prefix, std::optional<int64_t> vocab_size = std::nullopt);

  const std::string& name() const override { return prefix_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(index_.lengths.size()); }
  int64_t length(int64_t sequence) const override;
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;

  // Facts from the .idx file and the size of the .bin file.
  const IndexView& index() const { return index_; }
  TokenType token_type() const { return index_.type; }
  int64_t document_count() const { return static_cast<int64_t>(index_.documents.size()) - 1; }
  uint64_t bin_bytes() const { return bin_.size(); }
  // The tokens in their stored form.
  std::span<const std::byte> bin() const { return bin_.bytes(); }

  // Reads about `most_tokens` tokens, spread evenly over the file (all, if it has fewer), and throws like read(). So a
  // file that was made with another tokenizer is detected at once and not in the middle of a run.
  void check_some(int64_t most_tokens = int64_t{1} << 20) const;

  // Checks every rule of the format (check_index), and that every token is an integer from 0 to vocab_size - 1. Reads
  // both files completely. Throws a DataError that names the file and the byte of the first fault.
  void check() const;

 private:
  // Returns where tokens [offset, offset + count) of a sequence start in the .bin file, after checking that they exist.
  int64_t first_byte(int64_t sequence, int64_t offset, int64_t count) const;
  // Reads the first `most_tokens` of a sequence.
  void check_sequence(int64_t sequence, int64_t most_tokens) const;

  std::string prefix_;
  std::string idx_name_, bin_name_;  // for messages; made only once, since length() is called millions of times
  std::optional<int64_t> vocab_size_;
  io::MappedFile idx_, bin_;
  IndexView index_;
};

}  // namespace megalith::data
