#include "megalith/data/token_media_internal.h"

#include <bit>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

// Stored on disk: must not change.
constexpr int64_t kNumbers = 9;
constexpr int64_t kSourceNumbers = 5;
constexpr const char* kBytesName = "media_bytes.bin";

std::span<const int64_t> values_of(const io::MappedFile& file) {
  return {reinterpret_cast<const int64_t*>(file.data()), file.size() / sizeof(int64_t)};
}

// Returns the number of entries of `width` numbers.
int64_t entries(const io::MappedFile& file, int64_t width, const std::filesystem::path& path) {
  const auto bytes = static_cast<uint64_t>(width) * sizeof(int64_t);
  check<DataError>(file.size() % bytes == 0, "{} has {} bytes, which is not a whole number of values; it is damaged",
                   path.string(), file.size());
  return static_cast<int64_t>(file.size() / bytes);
}

}  // namespace

MediaColumns::MediaColumns(const std::filesystem::path& folder)
    : bytes_file_((folder / kBytesName).string()),
      numbers_(folder / "media.bin"),
      sources_(folder / "media_sources.bin"),
      names_(folder / "media_names.bin"),
      ends_(folder / "media_ends.bin"),
      numbers_count_(entries(numbers_, kNumbers, folder / "media.bin")),
      source_count_(entries(sources_, kSourceNumbers, folder / "media_sources.bin")) {
  entries(ends_, 1, folder / "media_ends.bin");
  std::error_code absent;
  const auto size = std::filesystem::file_size(bytes_file_, absent);
  if (!absent) stored_bytes_ = size;
}

std::span<const int64_t> MediaColumns::ends() const { return values_of(ends_); }

bool MediaColumns::fit(std::span<const int64_t> row_ends) const {
  const auto sources = values_of(sources_);
  for (int64_t i = 0; i < source_count_; ++i) {
    const auto n = sources.subspan(static_cast<size_t>(i * kSourceNumbers), kSourceNumbers);
    if (n[0] < 0 || n[1] < n[0] || n[1] > static_cast<int64_t>(names_.size())) return false;
    const auto stored = static_cast<int64_t>(stored_bytes_);
    if (n[0] == n[1] && (n[2] < 0 || n[3] < 0 || n[3] > stored || n[2] > stored - n[3])) return false;
  }
  const auto numbers = values_of(numbers_), ends = this->ends();
  if (ends.size() != row_ends.size()) return false;
  const auto n_of = [&](int64_t i) { return numbers.subspan(static_cast<size_t>(i * kNumbers), kNumbers); };
  int64_t row_begin = 0, medium = 0;
  for (size_t row = 0; row < row_ends.size(); ++row) {
    if (ends[row] < medium || ends[row] > numbers_count_) return false;
    const int64_t room = row_ends[row] - row_begin;
    for (const int64_t row_first = medium; medium < ends[row]; ++medium) {
      const auto n = n_of(medium);
      if (n[0] < 0 || n[1] <= n[0] || n[1] > source_count_) return false;
      if (n[6] < 0 || n[7] < 0 || n[7] > room || n[6] > room - n[7]) return false;
      if (n[2] < 0 || n[2] > static_cast<int64_t>(MediaKind::kSoundOfVideo)) return false;
      if (n[2] != static_cast<int64_t>(MediaKind::kSoundOfVideo)) continue;
      // Both streams have the tokens after the first one.
      const auto video = medium == row_first ? std::span<const int64_t>{} : n_of(medium - 1);
      if (video.empty() || video[2] != static_cast<int64_t>(MediaKind::kVideo) || video[6] != n[6] ||
          n[7] > room - n[6] - video[7])
        return false;
    }
    row_begin = row_ends[row];
  }
  return medium == numbers_count_;
}

MediaReference MediaColumns::medium(int64_t index) const {
  const auto n = values_of(numbers_).subspan(static_cast<size_t>(index * kNumbers), kNumbers);
  MediaReference medium{.grid = {n[3], n[4], n[5]},
                        .first = n[6],
                        .tokens = n[7],
                        .kind = static_cast<MediaKind>(n[2]),
                        .seconds = std::bit_cast<double>(n[8])};
  for (int64_t i = n[0]; i < n[1]; ++i) {
    const auto s = values_of(sources_).subspan(static_cast<size_t>(i * kSourceNumbers), kSourceNumbers);
    const auto name = names_.text(static_cast<uint64_t>(s[0]), static_cast<uint64_t>(s[1] - s[0]));
    medium.sources.push_back(
        {.file = name.empty() ? bytes_file_ : std::string(name), .offset = s[2], .bytes = s[3], .frame = s[4]});
  }
  return medium;
}

void MediaWriter::Column::write(const void* data, size_t size) {
  file.write_at(bytes, data, size);
  bytes += size;
}

void MediaWriter::create() {
  numbers_.file = io::FileHandle::create(folder_ / "media.bin");
  sources_.file = io::FileHandle::create(folder_ / "media_sources.bin");
  names_.file = io::FileHandle::create(folder_ / "media_names.bin");
  ends_.file = io::FileHandle::create(folder_ / "media_ends.bin");
  const std::vector<int64_t> none(static_cast<size_t>(rows_), 0);
  ends_.write(none.data(), none.size() * sizeof(int64_t));
}

std::array<int64_t, 5> MediaWriter::numbers_of(const MediaSource& source) {
  if (source.held) {
    if (source.held != last_held_) {  // both rows of a pair share them
      if (!stored_.file.is_open()) stored_.file = io::FileHandle::create(folder_ / kBytesName);
      last_held_ = source.held;
      last_held_offset_ = static_cast<int64_t>(stored_.bytes);
      stored_.write(source.held->data(), source.held->size());
    }
    return {0, 0, last_held_offset_, std::ssize(*source.held), source.frame};
  }
  if (source.file != last_name_) {
    last_name_ = source.file;
    last_name_place_[0] = static_cast<int64_t>(names_.bytes);
    names_.write(source.file.data(), source.file.size());
    last_name_place_[1] = static_cast<int64_t>(names_.bytes);
  }
  return {last_name_place_[0], last_name_place_[1], source.offset, source.bytes, source.frame};
}

void MediaWriter::append(std::span<const MediaReference> media, std::vector<int64_t> ends, int64_t rows) {
  if (media.empty() && count_ == 0) {
    rows_ += rows;
    return;
  }
  if (count_ == 0) create();
  std::vector<int64_t> numbers, sources;
  for (const MediaReference& medium : media) {
    const int64_t begin = source_count_;
    for (const MediaSource& source : medium.sources) {
      const std::array<int64_t, 5> of_source = numbers_of(source);
      sources.insert(sources.end(), of_source.begin(), of_source.end());
      ++source_count_;
    }
    numbers.insert(numbers.end(),
                   {begin, source_count_, static_cast<int64_t>(medium.kind), medium.grid[0], medium.grid[1],
                    medium.grid[2], medium.first, medium.tokens, std::bit_cast<int64_t>(medium.seconds)});
    any_sound_ = any_sound_ || medium.is_sound();
  }
  ends.resize(static_cast<size_t>(rows), std::ssize(media));
  for (int64_t& end : ends) end += count_;
  numbers_.write(numbers.data(), numbers.size() * sizeof(int64_t));
  sources_.write(sources.data(), sources.size() * sizeof(int64_t));
  ends_.write(ends.data(), ends.size() * sizeof(int64_t));
  count_ += std::ssize(media);
  rows_ += rows;
}

void MediaWriter::sync() {
  for (Column* column : {&numbers_, &sources_, &names_, &ends_, &stored_})
    if (column->file.is_open()) column->file.sync();
}

}  // namespace megalith::data
