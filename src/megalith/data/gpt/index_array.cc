// The .npy format, as much as index caches need:
//
//   "\x93NUMPY", major, minor, length of the header (2 bytes in format 1, 4 in format 2), header, numbers
//
// The header is a Python dictionary as text, padded with spaces and a newline such that the numbers start at a multiple
// of 64 bytes. NumPy always writes it in one form, so a regular expression reads it.
#include "megalith/data/gpt/index_array.h"

#include <fmt/ranges.h>

#include <cstring>
#include <optional>
#include <regex>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/mapped_file.h"

namespace megalith::data {

namespace {

constexpr std::string_view kNumpyMagic{"\x93NUMPY", 6};

template <typename T>
constexpr IndexType type_of() {
  if constexpr (std::is_same_v<T, int16_t>) return IndexType::kInt16;
  if constexpr (std::is_same_v<T, int32_t>) return IndexType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return IndexType::kInt64;
  if constexpr (std::is_same_v<T, uint32_t>) return IndexType::kUint32;
}

struct TypeName {
  IndexType type;
  const char* descr;  // NumPy's name for it
  size_t bytes;
};
// In the order of IndexType.
constexpr TypeName kTypes[] = {{IndexType::kInt16, "<i2", 2},
                               {IndexType::kInt32, "<i4", 4},
                               {IndexType::kInt64, "<i8", 8},
                               {IndexType::kUint32, "<u4", 4}};

const TypeName& name_of(IndexType type) { return kTypes[static_cast<size_t>(type)]; }

// The product of the sizes.
size_t count_of(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

// Returns everything in front of the numbers, padded as NumPy does: first up to 21 digits of room for the first size,
// so that a file could grow in place, then to a multiple of 64 bytes.
std::string npy_header(IndexType type, const std::vector<int64_t>& shape) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", name_of(type).descr,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  text.append(21 - std::to_string(shape[0]).size(), ' ');
  const size_t before = kNumpyMagic.size() + 2 + 2;
  text.append(64 - (before + text.size() + 1) % 64, ' ');
  text += '\n';
  std::string header{kNumpyMagic};
  header += {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

// The parsed header; the numbers begin at `data_offset`.
struct NpyHeader {
  const TypeName* type = nullptr;
  std::vector<int64_t> shape;
  size_t data_offset = 0;
};

// "10," -> {10}, "11, 2" -> {11, 2}: the contents of a Python tuple.
std::vector<int64_t> parse_shape(const std::string& text, const std::string& name) {
  std::vector<int64_t> shape;
  for (const std::string& part : split(text, ',')) {
    const std::string_view word = trim(part);
    if (word.empty()) continue;
    const std::optional<int64_t> size = parse_int(word);
    check<DataError>(size && *size >= 0 && *size < int64_t{1} << 48, "{}: byte 10: the shape ({}) is not possible",
                     name, text);
    shape.push_back(*size);
  }
  check<DataError>(shape.size() == 1 || shape.size() == 2, "{}: byte 10: the shape ({}) has {} dimensions, not 1 or 2",
                   name, text, shape.size());
  return shape;
}

// Formats 1 and 2 differ only in the width of the header's length.
NpyHeader parse_npy(const io::MappedFile& file, const std::string& name) {
  check<DataError>(file.size() >= 12 && file.text(0, 6) == kNumpyMagic,
                   "{}: byte 0: this is not a .npy file, or it is cut short", name);
  const int version = static_cast<int>(file.data()[6]);
  check<DataError>(version == 1 || version == 2, "{}: byte 6: .npy format {} is unknown", name, version);
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 8, version == 1 ? 2 : 4);
  const size_t start = version == 1 ? 10 : 12;
  constexpr uint32_t kLongestHeader = 4096;  // NumPy's own are 118 bytes
  check<DataError>(length <= std::min<uint64_t>(kLongestHeader, file.size() - start),
                   "{}: byte 8: the header is cut short or damaged", name);
  const std::string text(file.text(start, length));
  static const std::regex pattern(R"(\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \}\s*)");
  std::smatch parts;
  check<DataError>(std::regex_match(text, parts, pattern), "{}: byte {}: not the header of an array in C order", name,
                   start);
  NpyHeader header{.shape = parse_shape(parts[2], name), .data_offset = start + length};
  for (const TypeName& type : kTypes)
    if (parts[1] == type.descr) header.type = &type;
  check<DataError>(header.type != nullptr, "{}: byte {}: numbers of type {}; i2, i4, i8 and u4 are known", name, start,
                   parts[1].str());
  return header;
}

}  // namespace

template <typename T>
IndexArray::IndexArray(std::vector<T> values, std::vector<int64_t> shape)
    : type_(type_of<T>()), shape_(std::move(shape)) {
  check(count_of(shape_) == values.size(), "{} numbers for a shape of {}", values.size(), count_of(shape_));
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  data_ = reinterpret_cast<const std::byte*>(owner->data());
  owner_ = std::move(owner);
}
template IndexArray::IndexArray(std::vector<int16_t>, std::vector<int64_t>);
template IndexArray::IndexArray(std::vector<int32_t>, std::vector<int64_t>);
template IndexArray::IndexArray(std::vector<int64_t>, std::vector<int64_t>);
template IndexArray::IndexArray(std::vector<uint32_t>, std::vector<int64_t>);

IndexArray IndexArray::open_npy(const std::filesystem::path& path) {
  auto file = std::make_shared<const io::MappedFile>(path);
  const NpyHeader header = parse_npy(*file, path.string());
  // Cannot overflow: sizes are below 2^48, and the second is compared before it is multiplied.
  const auto room = (file->size() - header.data_offset) / header.type->bytes;
  const auto rows = static_cast<uint64_t>(header.shape[0]);
  const auto columns = header.shape.size() == 2 ? static_cast<uint64_t>(header.shape[1]) : 1;
  const bool fits = rows <= room && (rows == 0 || columns <= room / rows) &&
                    header.data_offset + rows * columns * header.type->bytes == file->size();
  check<DataError>(fits, "{}: byte {}: an array of {} rows of {} does not fill the file of {} bytes; it is cut short",
                   path.string(), header.data_offset, rows, columns, file->size());
  IndexArray array;
  array.type_ = header.type->type;
  array.shape_ = header.shape;
  array.data_ = file->data() + header.data_offset;
  array.owner_ = std::move(file);
  return array;
}

void IndexArray::write_npy(const io::FileHandle& file) const {
  const std::string header = npy_header(type_, shape_);
  file.write_at(0, header.data(), header.size());
  file.write_at(header.size(), data_, count_of(shape_) * name_of(type_).bytes);
}

// memcpy, because numbers in a mapped file need not be aligned.
int64_t IndexArray::operator[](int64_t i) const {
  const auto load = [&](auto value) {
    std::memcpy(&value, data_ + static_cast<size_t>(i) * sizeof value, sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (type_) {
    case IndexType::kInt16:
      return load(int16_t{});
    case IndexType::kInt64:
      return load(int64_t{});
    case IndexType::kUint32:
      return load(uint32_t{});
    case IndexType::kInt32:
      break;
  }
  return load(int32_t{});
}

}  // namespace megalith::data
