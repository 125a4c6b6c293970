// Three places describe a member. The central directory at the end counts, as in all readers; the header in front of
// the member only says, by its length, where the bytes begin.
//
//   local header, bytes      for each member
//   central directory        46 bytes per member, with name, extra fields and comment
//   end of it, 64 bits       where the numbers below are 0xFFFF…; found by a locator of 20 bytes
//   end of it                22 bytes and a comment
#include "megalith/hf/foreign/stored_zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {

namespace {

constexpr uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50, kLocator64Magic = 0x07064b50;
constexpr size_t kEndBytes = 22, kCentralBytes = 46, kLocalBytes = 30, kLocatorBytes = 20, kLongestComment = 65535;
constexpr uint32_t kIn64Bits = 0xFFFFFFFF;

// Numbers at places of the archive; every access is checked.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw DataError(
        fmt::format("{}: not a zip archive that torch writes: {}. It may be cut off; copy it again", name_, why));
  }
  std::string_view part(uint64_t offset, uint64_t bytes) const {
    if (offset > bytes_.size() || bytes > bytes_.size() - offset)
      refuse(fmt::format("{} bytes at {} are needed, and it has {}", bytes, offset, bytes_.size()));
    return bytes_.substr(offset, bytes);
  }
  template <typename T>
  T number(uint64_t offset) const {
    T value;
    std::memcpy(&value, part(offset, sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  const std::string& name_;
};

// The beginning of the central directory, and the number of its members.
struct Directory {
  uint64_t offset, members;
};

Directory find_directory(const Fields& fields) {
  if (fields.size() < kEndBytes) fields.refuse("it is too short");
  const uint64_t last = fields.size() - kEndBytes, first = last > kLongestComment ? last - kLongestComment : 0;
  uint64_t end = last;
  while (fields.number<uint32_t>(end) != kEndMagic) {
    if (end == first) fields.refuse("the end of its directory is missing");
    --end;
  }
  Directory found{fields.number<uint32_t>(end + 16), fields.number<uint16_t>(end + 10)};
  const bool has_locator = end >= kLocatorBytes && fields.number<uint32_t>(end - kLocatorBytes) == kLocator64Magic;
  if (!has_locator) return found;
  const auto end64 = fields.number<uint64_t>(end - kLocatorBytes + 8);
  if (fields.number<uint32_t>(end64) != kEnd64Magic) fields.refuse("the end of its directory is damaged");
  return {fields.number<uint64_t>(end64 + 48), fields.number<uint64_t>(end64 + 32)};
}

// A member as the directory lists it.
struct Member {
  uint64_t offset, bytes, stored;
};

// Replaces the numbers that do not fit into 32 bits by those of the extra field 1.
void read_extra(const Fields& fields, uint64_t begin, uint64_t bytes, Member& member) {
  const uint64_t end = begin + bytes;
  for (uint64_t at = begin; at + 4 <= end;) {
    const auto kind = fields.number<uint16_t>(at), size = fields.number<uint16_t>(at + 2);
    uint64_t next = at + 4;
    if (kind == 1)
      for (uint64_t* number : {&member.bytes, &member.stored, &member.offset})
        if (*number == kIn64Bits) {
          *number = fields.number<uint64_t>(next);
          next += 8;
        }
    at += 4 + size;
  }
}

}  // namespace

bool is_zip(std::string_view bytes) { return bytes.starts_with(std::string_view("PK\x03\x04", 4)); }

StoredZip::StoredZip(std::string_view bytes, const std::string& name) : name_(name) {
  const Fields fields(bytes, name_);
  const Directory directory = find_directory(fields);
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.members; ++i) {
    if (fields.number<uint32_t>(at) != kCentralMagic) fields.refuse("its directory is damaged");
    const auto method = fields.number<uint16_t>(at + 10);
    const auto name_bytes = fields.number<uint16_t>(at + 28), extra_bytes = fields.number<uint16_t>(at + 30),
               comment_bytes = fields.number<uint16_t>(at + 32);
    const std::string_view path = fields.part(at + kCentralBytes, name_bytes);
    Member member{fields.number<uint32_t>(at + 42), fields.number<uint32_t>(at + 24), fields.number<uint32_t>(at + 20)};
    read_extra(fields, at + kCentralBytes + name_bytes, extra_bytes, member);
    if (method != 0 || member.stored != member.bytes)
      fields.refuse(fmt::format("{} is compressed, which torch.save does not do", io::in_quotes(path)));
    if (fields.number<uint32_t>(member.offset) != kLocalMagic)
      fields.refuse(fmt::format("{} is not where the directory says", io::in_quotes(path)));
    const uint64_t begin = member.offset + kLocalBytes + fields.number<uint16_t>(member.offset + 26) +
                           fields.number<uint16_t>(member.offset + 28);
    // The folder has the name that the file had when it was written.
    const size_t slash = path.find('/');
    const std::string_view inside = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (!members_.emplace(inside, fields.part(begin, member.bytes)).second)
      fields.refuse(fmt::format("{} is in it twice", io::in_quotes(path)));
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  }
}

std::string_view StoredZip::content(std::string_view member) const {
  const auto found = members_.find(member);
  if (found == members_.end())
    throw DataError(
        fmt::format("{}: the archive has no member {}; it is not a file of torch.save", name_, io::in_quotes(member)));
  return found->second;
}

}  // namespace megalith::hf
