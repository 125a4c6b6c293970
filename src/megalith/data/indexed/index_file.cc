// Parsing and writing .idx files. The input is untrusted: every count is compared with the size of the file before it
// is multiplied, so no product can overflow and no view can reach beyond the file. Messages name the byte of the fault.
#include "megalith/data/indexed/index_file.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "megalith/base/error.h"

namespace megalith::data {

static_assert(std::endian::native == std::endian::little, "arrays are views of little-endian bytes");

namespace {

constexpr std::string_view kIndexFileMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kIndexFileVersion = 1;

// Reads a number at a byte of the file, which must have been checked to lie inside.
template <typename T>
T value_at(std::span<const std::byte> file, size_t at) {
  return PackedArray<T>(file.data() + at, 1)[0];
}

// The counts that determine the sizes of the three arrays.
struct ArrayBytes {
  uint64_t sequences = 0, documents = 0;
  uint64_t total() const { return kIndexHeaderBytes + 12 * sequences + 8 * documents; }
};

// 18 and 26 are the bytes of the two counts; see the table in the header.
ArrayBytes checked_counts(std::span<const std::byte> file, const std::string& name) {
  const ArrayBytes counts{value_at<uint64_t>(file, 18), value_at<uint64_t>(file, 26)};
  // Once each count is at most the size of the file, neither product can overflow.
  check<DataError>(counts.sequences <= file.size() / 12,
                   "{}: byte 18: it promises {} sequences, but a file of {} bytes has room for {}; it is cut short or "
                   "damaged",
                   name, counts.sequences, file.size(), file.size() / 12);
  check<DataError>(
      counts.documents >= 1 && counts.documents <= file.size() / 8,
      "{}: byte 26: the document index has {} entries; it must have 1 (no documents) to {} in a file of {} "
      "bytes",
      name, counts.documents, file.size() / 8, file.size());
  return counts;
}

}  // namespace

// Checks fields in the order of the file, so that the message names the first one that is wrong.
IndexView parse_index(std::span<const std::byte> file, const std::string& name) {
  // A truncated file may have only the start of the magic number: then the message says that it is cut short.
  const size_t shown = std::min(file.size(), kIndexFileMagic.size());
  const std::string_view start(reinterpret_cast<const char*>(file.data()), shown);
  check<DataError>(start == kIndexFileMagic.substr(0, shown) && shown > 0,
                   "{}: byte 0: bad header: an .idx file begins with MMIDIDX and two zero bytes; this file is {}", name,
                   file.empty() ? "empty" : "something else");
  check<DataError>(file.size() >= kIndexHeaderBytes,
                   "{}: byte {}: the file ends inside its header, which has {} bytes; it is cut short", name,
                   file.size(), kIndexHeaderBytes);
  const auto version = value_at<uint64_t>(file, 9);
  check<DataError>(version == kIndexFileVersion, "{}: byte 9: bad version {}; only version {} is known", name, version,
                   kIndexFileVersion);
  const auto code = value_at<uint8_t>(file, 17);
  const std::optional<TokenType> type = token_type_of_code(code);
  check<DataError>(type.has_value(),
                   "{}: byte 17: token type {} is unknown; 1 to 8 are uint8, int8, int16, int32, int64, float64, "
                   "float32, uint16",
                   name, code);
  const ArrayBytes counts = checked_counts(file, name);
  // Header, lengths (4 bytes), offsets (8) and document index (8), as in the table of index_file.h.
  const uint64_t promised = counts.total();
  // The header does not tell whether modes follow; only the size does.
  const bool has_modes = counts.sequences > 0 && file.size() == promised + counts.sequences;
  check<DataError>(file.size() == promised || has_modes,
                   "{}: byte {}: {} sequences and {} entries of the document index take {} bytes, but the file has {}; "
                   "it is {}",
                   name, std::min<uint64_t>(file.size(), promised), counts.sequences, counts.documents, promised,
                   file.size(), file.size() < promised ? "cut short" : "damaged or followed by something else");
  const std::byte* arrays = file.data() + kIndexHeaderBytes;
  return {.type = *type,
          .lengths = {arrays, counts.sequences},
          .offsets = {arrays + 4 * counts.sequences, counts.sequences},
          .documents = {arrays + 12 * counts.sequences, counts.documents},
          .has_modes = has_modes};
}

namespace {

// Checks that the document index rises from 0 to the number of sequences.
void check_documents(const IndexView& index, const std::string& name) {
  const auto sequences = static_cast<int64_t>(index.lengths.size());
  int64_t previous = 0;
  for (size_t i = 0; i < index.documents.size(); ++i) {
    const int64_t start = index.documents[i];
    check<DataError>(i > 0 || start == 0, "{}: byte {}: the document index begins with {}; it must begin with 0", name,
                     index.document_place(i), start);
    check<DataError>(start >= previous,
                     "{}: byte {}: document {} starts with sequence {}, before the one before it ({})", name,
                     index.document_place(i), i, start, previous);
    check<DataError>(start <= sequences, "{}: byte {}: document {} starts with sequence {}, but there are {}", name,
                     index.document_place(i), i, start, sequences);
    previous = start;
  }
  check<DataError>(previous == sequences,
                   "{}: byte {}: the document index ends with {}; it must end with {}, the "
                   "number of sequences",
                   name, index.document_place(index.documents.size() - 1), previous, sequences);
}

}  // namespace

// Sequences must be contiguous: that is how Megatron writes them, and it makes overlaps and gaps impossible.
void check_index(const IndexView& index, uint64_t bin_bytes, const std::string& name) {
  const int64_t bytes_per_token = token_bytes(index.type);
  uint64_t expected = 0;  // grows by at most 2^34 before it is compared with bin_bytes: no overflow
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    const int32_t length = index.lengths[i];
    check<DataError>(length >= 0, "{}: byte {}: sequence {} has {} tokens", name, index.length_place(i), i, length);
    check<DataError>(
        index.offsets[i] == static_cast<int64_t>(expected),
        "{}: byte {}: sequence {} starts at byte {} of the .bin file; the sequences before it end at byte {}", name,
        index.offset_place(i), i, index.offsets[i], expected);
    expected += static_cast<uint64_t>(length * bytes_per_token);
    check<DataError>(expected <= bin_bytes,
                     "{}: byte {}: sequence {} of {} tokens ends at byte {} of the .bin file, which has {} bytes", name,
                     index.length_place(i), i, length, expected, bin_bytes);
  }
  check<DataError>(expected == bin_bytes,
                   "{}: byte 18: {} sequences of {} tokens end at byte {} of the .bin file, which has {} bytes", name,
                   index.lengths.size(), token_type_name(index.type), expected, bin_bytes);
  check_documents(index, name);
}

// Built in memory as a whole: 12 bytes per sequence, which the writer holds anyway.
std::vector<std::byte> index_bytes(TokenType type, std::span<const int32_t> lengths,
                                   std::span<const int64_t> documents) {
  check(!documents.empty() && documents.front() == 0, "the document index does not begin with 0");
  std::vector<std::byte> file(kIndexHeaderBytes + 12 * lengths.size() + 8 * documents.size());
  std::byte* to = file.data();
  const auto append = [&](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(to, data, bytes);
    to += bytes;
  };
  const uint64_t counts[] = {lengths.size(), documents.size()};
  append(kIndexFileMagic.data(), kIndexFileMagic.size());
  append(&kIndexFileVersion, sizeof kIndexFileVersion);
  append(&type, 1);
  append(counts, sizeof counts);
  append(lengths.data(), lengths.size_bytes());
  const int64_t bytes_per_token = token_bytes(type);
  int64_t offset = 0;
  for (const int32_t length : lengths) {
    append(&offset, sizeof offset);
    offset += length * bytes_per_token;
  }
  append(documents.data(), documents.size_bytes());
  return file;
}

}  // namespace megalith::data
