// Tokens go to the .bin file as they come, through a buffer; lengths and documents stay in memory until finish(), since
// the .idx file holds one array after the other and their places depend on the final counts.
#include "megalith/data/indexed/indexed_writer.h"

#include <cstring>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"

namespace megalith::data {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;  // tokens are written in blocks of about this size

}  // namespace

IndexedWriter::IndexedWriter(StagedFiles& files, const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(files.create(bin_path(prefix))), idx_(files.create(idx_path(prefix))) {
  buffer_.reserve(kBufferBytes);
}

void IndexedWriter::add_sequence(std::span<const int32_t> ids) {
  check<DataError>(ids.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
                   "{}: a sequence of {} tokens; at most 2^31 - 1 fit", prefix_, ids.size());
  // One dispatch per sequence, not per token.
  visit_token_type(type_, [&](auto type) {
    using T = decltype(type);
    // A sequence that is longer than the buffer makes it grow once; it is written as a whole all the same.
    if (buffer_.size() + ids.size() * sizeof(T) > kBufferBytes) flush();
    size_t at = buffer_.size();
    buffer_.resize(at + ids.size() * sizeof(T));
    for (const int32_t id : ids) {
      check<DataError>(id >= 0 && can_hold(type_, id),
                       "{}: token id {} cannot be stored as {}; the vocabulary is larger than it claims", prefix_, id,
                       token_type_name(type_));
      const T token = static_cast<T>(id);
      std::memcpy(buffer_.data() + at, &token, sizeof token);
      at += sizeof token;
    }
  });
  lengths_.push_back(static_cast<int32_t>(ids.size()));
  tokens_ += static_cast<int64_t>(ids.size());
}

void IndexedWriter::end_document() { documents_.push_back(sequence_count()); }

// Copies the tokens as bytes, without decoding them; only lengths and documents are renumbered.
void IndexedWriter::append(const IndexedDataset& other) {
  check<DataError>(other.token_type() == type_,
                   "{} stores its tokens as {}, {} as {}; only pairs of one type can be merged", other.name(),
                   token_type_name(other.token_type()), prefix_, token_type_name(type_));
  check<DataError>(!other.index().has_modes, "{} is multimodal; only sets of text can be merged", other.name());
  other.check();  // a fault in one part would make the whole merged file useless
  flush();
  constexpr size_t kBlockBytes = size_t{64} << 20;  // between two reports of progress
  const auto bytes = other.bin();
  TaskProgress progress("copying " + other.name(), TaskProgress::Unit::kBytes, std::ssize(bytes));
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    const size_t count = std::min(kBlockBytes, bytes.size() - at);
    bin_.write_at(written_, bytes.data() + at, count);
    written_ += count;
    progress.add(static_cast<int64_t>(count));
  }
  const int64_t sequences = sequence_count();
  const IndexView& index = other.index();
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    lengths_.push_back(index.lengths[i]);
    tokens_ += index.lengths[i];
  }
  // From 1: entry 0 is the start of the first document, which documents_ already ends with.
  for (size_t i = 1; i < index.documents.size(); ++i) documents_.push_back(sequences + index.documents[i]);
}

// The index is written last and in one piece, since the offsets of its arrays depend on the number of sequences.
void IndexedWriter::finish() {
  flush();
  const std::vector<std::byte> index = index_bytes(type_, lengths_, documents_);
  idx_.write_at(0, index.data(), index.size());
}

void IndexedWriter::flush() {
  bin_.write_at(written_, buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  buffer_.clear();
}

// The first input decides the token type. Compares files, not names: a link to an input is refused as well.
void merge_indexed(std::span<const std::string> prefixes, const std::string& output, StagedFiles& files) {
  check(!prefixes.empty(), "nothing to merge");
  for (const std::string& prefix : prefixes) {
    std::error_code ignored;
    check<ConfigError>(!std::filesystem::equivalent(bin_path(prefix), bin_path(output), ignored),
                       "{} is an input and the output; choose another output", output);
  }
  const TokenType type = IndexedDataset(prefixes[0]).token_type();
  IndexedWriter writer(files, output, type);
  for (const std::string& prefix : prefixes) writer.append(IndexedDataset(prefix));
  writer.finish();
}

}  // namespace megalith::data
