// Tokens are converted from the mapped .bin file on every read, and checked there too: reading is the only place that
// sees each token. The search for the faulty token is a second loop, which runs only after an error, so that the loop
// over good tokens has no branch that throws.
#include "megalith/data/indexed/indexed_dataset.h"

#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"

namespace megalith::data {

namespace {

// The number of sequences that check_some reads from a large file.
constexpr int64_t kSpotChecks = 256;

// Returns a stored token as an id; -1 if it is not one (negative, a fraction, NaN).
template <typename T>
int64_t id_of(T token) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool whole = token >= 0 && token < static_cast<T>(int64_t{1} << 62) && std::floor(token) == token;
    return whole ? static_cast<int64_t>(token) : -1;
  } else {
    return token < 0 ? -1 : static_cast<int64_t>(token);
  }
}

// The end of the message about a bad token: what would be allowed, and the likely cause.
std::string advice(std::optional<int64_t> vocab_size) {
  if (!vocab_size) return "a token id is a whole number >= 0";
  return fmt::format("ids go from 0 to {}: the file was made with another tokenizer, or it is damaged",
                     *vocab_size - 1);
}

}  // namespace

std::filesystem::path bin_path(const std::string& prefix) { return prefix + ".bin"; }
std::filesystem::path idx_path(const std::string& prefix) { return prefix + ".idx"; }

IndexedDataset::IndexedDataset(const std::string& prefix, std::optional<int64_t> vocab_size)
    : prefix_(prefix),
      idx_name_(idx_path(prefix).string()),
      bin_name_(bin_path(prefix).string()),
      vocab_size_(vocab_size),
      idx_(idx_path(prefix)),
      bin_(bin_path(prefix)),
      index_(parse_index(idx_.bytes(), idx_name_)) {
  const int64_t bytes = token_bytes(index_.type);
  megalith::check<DataError>(bin_.size() % static_cast<uint64_t>(bytes) == 0,
                             "{}: byte {}: the file has {} bytes, which is not a multiple of the {} that a token takes "
                             "({}); it is cut short or damaged",
                             bin_name_, bin_.size(), bin_.size(), bytes, token_type_name(index_.type));
}

int64_t IndexedDataset::length(int64_t sequence) const {
  const auto i = static_cast<size_t>(sequence);
  const int32_t length = index_.lengths[i];
  megalith::check<DataError>(length >= 0, "{}: byte {}: sequence {} has {} tokens", idx_name_, index_.length_place(i),
                             sequence, length);
  return length;
}

// Trusts neither length nor offset of the entry: together they must lie within the .bin file.
int64_t IndexedDataset::first_byte(int64_t sequence, int64_t offset, int64_t count) const {
  megalith::check(sequence >= 0 && sequence < sequence_count() && offset >= 0 && offset + count <= length(sequence),
                  "{}: tokens {} to {} of sequence {} do not exist", prefix_, offset, offset + count, sequence);
  const auto i = static_cast<size_t>(sequence);
  const int64_t start = index_.offsets[i];
  const auto size = static_cast<int64_t>(bin_.size());
  const int64_t bytes = length(sequence) * token_bytes(index_.type);
  megalith::check<DataError>(start >= 0 && start <= size && bytes <= size - start,
                             "{}: byte {}: sequence {} is said to take {} bytes from byte {} of the .bin file, which "
                             "has {}; the files do not belong together or are damaged",
                             idx_name_, index_.offset_place(i), sequence, bytes, start, size);
  return start + offset * token_bytes(index_.type);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  const int64_t start = first_byte(sequence, offset, static_cast<int64_t>(out.size()));
  const int64_t end = vocab_size_.value_or(std::numeric_limits<int64_t>::max());
  visit_token_type(index_.type, [&](auto type) {
    using T = decltype(type);
    const PackedArray<T> tokens(bin_.data() + start, out.size());
    bool good = true;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = id_of(tokens[i]);
      good &= out[i] >= 0 && out[i] < end;
    }
    for (size_t i = 0; !good && i < out.size(); ++i)
      megalith::check<DataError>(out[i] >= 0 && out[i] < end, "{}: byte {}: token {} of sequence {} is {}; {}",
                                 bin_name_, start + static_cast<int64_t>(i * sizeof(T)),
                                 offset + static_cast<int64_t>(i), sequence, tokens[i], advice(vocab_size_));
  });
}

// read() does the checking.
void IndexedDataset::check_sequence(int64_t sequence, int64_t most_tokens) const {
  // 32 KiB on the stack: tokens are read to be checked, and not kept.
  std::array<int64_t, 4096> block;
  const int64_t tokens = std::min(length(sequence), most_tokens);
  for (int64_t at = 0; at < tokens; at += std::ssize(block))
    read(sequence, at, std::span(block).first(static_cast<size_t>(std::min(tokens - at, std::ssize(block)))));
}

void IndexedDataset::check_some(int64_t most_tokens) const {
  const auto all_tokens = static_cast<int64_t>(bin_.size()) / token_bytes(index_.type);
  const bool all = all_tokens <= most_tokens;
  // A large file: the start of up to 256 sequences, at equal distances by number.
  const int64_t count = all ? sequence_count() : std::min(sequence_count(), kSpotChecks);
  for (int64_t i = 0; i < count; ++i)
    check_sequence(i * sequence_count() / count, all ? all_tokens : most_tokens / kSpotChecks);
}

void IndexedDataset::check() const {
  check_index(index_, bin_.size(), idx_name_);
  TaskProgress progress("checking " + prefix_, TaskProgress::Unit::kBytes, static_cast<int64_t>(bin_.size()));
  for (int64_t sequence = 0; sequence < sequence_count(); ++sequence) {
    check_sequence(sequence, length(sequence));
    progress.add(length(sequence) * token_bytes(index_.type));
  }
}

}  // namespace megalith::data
