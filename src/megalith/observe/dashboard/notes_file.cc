#include "megalith/observe/dashboard/notes_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"
#include "megalith/observe/dashboard/page.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

std::string string_member(const Json& value, const char* what) {
  check<DataError>(value.is_string(), "{} must be text", what);
  return value.get<std::string>();
}

std::string checked_tag(const Json& value) {
  std::string tag = string_member(value, "a tag");
  const bool plain = std::ranges::none_of(tag, [](unsigned char c) { return c < 0x20 || c == 0x7f || c == ','; });
  check<DataError>(!tag.empty() && tag.size() <= RunNotes::kMostTagBytes && plain,
                   "a tag must have 1 to {} bytes and no comma or line break", RunNotes::kMostTagBytes);
  return tag;
}

// Creates a file that did not exist, with all of `text` on the disk. Returns the reason for a failure, or "".
std::string create_file(const std::filesystem::path& path, std::string_view text) {
  constexpr mode_t kOwnerWrites = 0644;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerWrites);
  if (file < 0) return std::strerror(errno);
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t put = ::write(file, text.data() + done, text.size() - done);
    if (put < 0 && errno != EINTR) error = errno;
    if (put > 0) done += static_cast<size_t>(put);
  }
  if (error == 0 && ::fsync(file) != 0) error = errno;
  ::close(file);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::string RunNotes::to_json() const {
  return Json{{"notes", notes}, {"tags", tags}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RunNotes RunNotes::from_json(std::string_view text) {
  const Json object = io::parse_json(text, kNotesFileName);
  check<DataError>(object.is_object(), "{} must be an object with notes and tags", kNotesFileName);
  RunNotes result;
  for (const auto& [name, value] : object.items()) {
    check<DataError>(name == "notes" || name == "tags", "{} has a member \"{}\"; it may have notes and tags",
                     kNotesFileName, name);
    if (name == "notes") result.notes = string_member(value, "notes");
    if (name != "tags") continue;
    check<DataError>(value.is_array() && value.size() <= kMostTags, "tags must be a list of at most {}", kMostTags);
    for (const Json& tag : value) result.tags.push_back(checked_tag(tag));
  }
  check<DataError>(result.notes.size() <= kMostNotesBytes, "notes have {} bytes; at most {} are kept",
                   result.notes.size(), kMostNotesBytes);
  return result;
}

// A new file under a random name, then a rename: readers see the old notes or the new ones.
void write_notes(const std::filesystem::path& folder, const RunNotes& notes) {
  const std::filesystem::path temporary = folder / fmt::format(".{}.{}", kNotesFileName, random_nonce());
  std::string problem = create_file(temporary, notes.to_json() + "\n");
  if (problem.empty() && ::rename(temporary.c_str(), (folder / kNotesFileName).c_str()) != 0)
    problem = std::strerror(errno);
  if (!problem.empty()) ::unlink(temporary.c_str());
  check<DataError>(problem.empty(), "cannot write {}: {}", (folder / kNotesFileName).string(), problem);
}

}  // namespace megalith::observe
