// The media of a token folder: the columns of their references, and the bytes of those that have no file.
//
//   media.bin          nine int64 per medium: begin and end of its sources, kind, grid, first token, tokens,
//                      seconds of a time patch (the bits of a double)
//   media_sources.bin  five int64 per source: begin and end of its file's name, offset, bytes, frame
//   media_names.bin    the names, one after the other
//   media_ends.bin     int64, where the media of each row end
//   media_bytes.bin    bytes of sources with an empty name, which lie in this file
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/data/media_reference.h"
#include "megalith/io/file_io.h"
#include "megalith/io/mapped_file.h"

namespace megalith::data {

// The mapped columns of a folder. Immutable.
class MediaColumns {
 public:
  // Throws a DataError if a file is missing or is not a whole number of values.
  explicit MediaColumns(const std::filesystem::path& folder);

  // The ends of the media of each row.
  std::span<const int64_t> ends() const;
  int64_t size() const { return numbers_count_; }
  // Whether names, sources and tokens lie within the arrays; `row_ends` have been checked.
  bool fit(std::span<const int64_t> row_ends) const;
  // Requires fit().
  MediaReference medium(int64_t index) const;

 private:
  std::string bytes_file_;
  io::MappedFile numbers_, sources_, names_, ends_;
  int64_t numbers_count_ = 0, source_count_ = 0;
  uint64_t stored_bytes_ = 0;  // size of media_bytes.bin
};

// Appends media to the files of a folder, which are created with the first one.
class MediaWriter {
 public:
  explicit MediaWriter(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Appends the media of `rows` rows; `ends` are relative to their start, and may be short or empty.
  void append(std::span<const MediaReference> media, std::vector<int64_t> ends, int64_t rows);
  // Whether there was any medium, and any sound.
  bool any() const { return count_ > 0; }
  bool any_sound() const { return any_sound_; }
  void sync();

 private:
  struct Column {
    io::FileHandle file;
    uint64_t bytes = 0;
    void write(const void* data, size_t size);
  };
  void create();
  // Returns the five numbers of a source; stores bytes that are held.
  std::array<int64_t, 5> numbers_of(const MediaSource& source);

  std::filesystem::path folder_;
  Column numbers_, sources_, names_, ends_, stored_;
  int64_t count_ = 0, source_count_ = 0, rows_ = 0;
  bool any_sound_ = false;
  // The last name and the last bytes, which the next source often shares.
  std::string last_name_;
  std::array<int64_t, 2> last_name_place_{};
  std::shared_ptr<const std::string> last_held_;
  int64_t last_held_offset_ = 0;
};

}  // namespace megalith::data
