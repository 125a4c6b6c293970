// notes.json: what people write about a run, kept in the run's folder.
//
//   {"notes":"diverged after the data change","tags":["baseline","lr-sweep"]}
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::observe {

// A text and some short words by which runs are found.
struct RunNotes {
  std::string notes;
  std::vector<std::string> tags;
  bool operator==(const RunNotes&) const = default;

  std::string to_json() const;
  // Throws DataError with the reason: not such an object, other keys, more than kMostTags tags, a tag that is empty,
  // has more than kMostTagBytes bytes, a comma or a line break, or notes of more than kMostNotesBytes bytes.
  static RunNotes from_json(std::string_view text);

  static constexpr size_t kMostNotesBytes = 16384, kMostTags = 32, kMostTagBytes = 64;
};

inline constexpr const char* kNotesFileName = "notes.json";

// Replaces `<folder>/notes.json` as a whole. The file is readable as the umask allows and never writable for others; a
// link in its place is replaced, not followed. Throws DataError when the folder cannot be written to.
void write_notes(const std::filesystem::path& folder, const RunNotes& notes);

}  // namespace megalith::observe
