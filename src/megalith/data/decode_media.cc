#include "megalith/data/decode_media_internal.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/mapped_file.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_file.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {
namespace {

using media::PatchGrid;

PatchGrid grid_of(const MediaReference& medium) { return {medium.grid[0], medium.grid[1], medium.grid[2]}; }

// Returns the result of `read` for the bytes, which are only mapped as long as it runs.
template <typename Read>
auto with_bytes(const MediaSource& source, const std::string& name, const Read& read) {
  if (source.held) return read(std::string_view(*source.held));
  const io::MappedFile file{std::filesystem::path(source.file)};
  const auto size = static_cast<int64_t>(file.size());
  const int64_t bytes = source.bytes < 0 ? size - source.offset : source.bytes;
  check<DataError>(source.offset >= 0 && bytes >= 0 && source.offset <= size - bytes,
                   "{}: the file has become shorter since it was tokenized", name);
  return read(file.text(static_cast<uint64_t>(source.offset), static_cast<uint64_t>(bytes)));
}

media::Image decode_source(const MediaSource& source) {
  const std::string name = name_of(source);
  return with_bytes(source, name, [&](std::string_view bytes) { return media::decode_image(bytes, name); });
}

// Whether the source is a file of its own, and not bytes in a record or in a part of a file.
bool is_file(const MediaSource& source) { return !source.held && source.bytes < 0; }

// Decodes frames of the video file that the source refers to.
void read_frames(const MediaSource& source, std::span<const int64_t> numbers,
                 const std::function<void(size_t i, media::Image frame)>& take) {
  if (is_file(source)) return media::read_video_frames(source.file, numbers, take);
  const std::string name = name_of(source, "a video");
  with_bytes(source, name, [&](std::string_view bytes) { media::read_video_frames(bytes, name, numbers, take); });
}

media::Sound decode_sound(const MediaSource& source) {
  const std::string name = name_of(source, "a sound");
  if (source.frame >= 0 && is_file(source)) return media::decode_video_sound(source.file);
  if (source.frame >= 0)
    return with_bytes(source, name, [&](std::string_view bytes) { return media::decode_video_sound(bytes, name); });
  return with_bytes(source, name, [&](std::string_view bytes) { return media::decode_sound(bytes, name); });
}

void decode_sound(const MediaReference& medium, const media::SoundProcessor& processor, float* rows) {
  const MediaSource& source = medium.sources.front();
  const std::string name = name_of(source, "a sound");
  media::Sound sound = decode_sound(source);
  const media::SoundHeader header{sound.rate, 1, std::ssize(sound.samples)};
  check<DataError>(processor.frames(header, name) == medium.grid[0],
                   "{}: the sound has {} samples at {} per second, which is not the length that it was tokenized with."
                   " The file has changed: tokenize again",
                   name, header.samples, header.rate);
  processor.write_frames(std::move(sound), rows);
}

[[noreturn]] void refuse_changed(const std::string& name, const media::Image& image, const char* limits) {
  throw DataError(
      fmt::format("{}: the image has {} x {} pixels, which is not the size that it was tokenized with. The file, "
                  "{}_max_pixels or {}_min_pixels has changed: tokenize again",
                  name, image.width, image.height, limits, limits));
}

void decode_image(const MediaReference& medium, const media::ImageProcessor& processor, float* rows) {
  const MediaSource& source = medium.sources.front();
  media::Image image = decode_source(source);
  const std::string name = name_of(source);
  if (processor.grid({image.width, image.height}, name) != grid_of(medium)) refuse_changed(name, image, "image");
  processor.patch_rows(processor.pre_resize(std::move(image), name), rows, name);
}

// Takes the frames of a video, in order, and writes the rows of each time patch as soon as it is full.
class TimePatches {
 public:
  TimePatches(const MediumRows& to, const media::VideoProcessor& processor)
      : medium_(*to.medium), processor_(processor), rows_(to.rows) {}

  void add(media::Image frame, const std::string& name) {
    check_size(frame, name);
    frames_.push_back(processor_.pre_resize(std::move(frame), name));
    const bool last = ++taken_ == std::ssize(medium_.sources);
    if (!last && std::ssize(frames_) < processor_.frames_per_patch()) return;
    processor_.patch_rows(frames_, grid_of(medium_), rows_);
    rows_ += medium_.grid[1] * medium_.grid[2] * processor_.row_width();
    frames_.clear();
  }
  bool complete() const { return taken_ == std::ssize(medium_.sources); }

 private:
  // Where limits are those of all frames, the grid of a time patch does not follow from its own: then only frames of
  // different sizes show that a file has changed.
  void check_size(const media::Image& frame, const std::string& name) {
    const media::ImageSize size{frame.width, frame.height};
    if (!first_) first_ = size;
    const bool alone = !processor_.settings().limits_all_frames;
    if (size != *first_ || (alone && processor_.grid(std::ssize(medium_.sources), size, name) != grid_of(medium_)))
      refuse_changed(name, frame, "video");
  }

  const MediaReference& medium_;
  const media::VideoProcessor& processor_;
  float* rows_;
  std::optional<media::ImageSize> first_;
  std::vector<media::Image> frames_;
  int64_t taken_ = 0;
};

void decode_video_file(std::span<const MediumRows> media, const media::VideoProcessor& processor) {
  const MediaSource& source = media.front().medium->sources.front();
  const std::string file = name_of(source, "a video");
  std::vector<int64_t> numbers;
  std::vector<TimePatches> patches;
  for (const MediumRows& one : media) {
    patches.emplace_back(one, processor);
    for (const MediaSource& frame : one.medium->sources) numbers.push_back(frame.frame);
  }
  size_t at = 0;
  read_frames(source, numbers, [&](size_t i, media::Image frame) {
    if (patches[at].complete()) ++at;
    patches[at].add(std::move(frame), fmt::format("{}, frame {}", file, numbers[i]));
  });
}

}  // namespace

std::string name_of(const MediaSource& source, const char* what) {
  if (source.held) return source.file.empty() ? fmt::format("{} of the record", what) : source.file;
  if (source.bytes < 0) return source.file;
  return fmt::format("{}, bytes {} to {}", source.file, source.offset, source.offset + source.bytes);
}

std::optional<media::SoundHeader> sound_in_video(const MediaSource& source) {
  if (is_file(source)) return media::read_video_sound_header(source.file);
  const std::string name = name_of(source, "a video");
  return with_bytes(source, name, [&](std::string_view bytes) { return media::read_video_sound_header(bytes, name); });
}

media::SoundHeader sound_header(MediaSource& source) {
  const std::string name = name_of(source, "a sound");
  const auto header = with_bytes(source, name, [&](std::string_view bytes) -> std::optional<media::SoundHeader> {
    if (media::is_video_container(bytes)) return std::nullopt;
    return media::read_sound_header(bytes, name);
  });
  if (header) return *header;
  source.frame = 0;
  const auto in_video = sound_in_video(source);
  check<DataError>(in_video.has_value(), "{}: the file has no sound", name);
  return *in_video;
}

void check_decodes(const MediaReference& medium) {
  if (medium.is_sound()) {
    decode_sound(medium.sources.front());
    return;
  }
  if (medium.sources.front().frame < 0) {
    for (const MediaSource& source : medium.sources) decode_source(source);
    return;
  }
  std::vector<int64_t> numbers;
  for (const MediaSource& source : medium.sources) numbers.push_back(source.frame);
  read_frames(medium.sources.front(), numbers, [](size_t, const media::Image&) {});
}

bool continues(const MediaReference& first, const MediaReference& second) {
  const MediaSource &last = first.sources.back(), &next = second.sources.front();
  const bool same = next.file == last.file && next.offset == last.offset && next.held == last.held;
  const bool videos = first.kind == MediaKind::kVideo && second.kind == MediaKind::kVideo;
  return videos && last.frame >= 0 && next.frame >= last.frame && same;
}

void decode_media(std::span<const MediumRows> media, const MediaProcessors& processors) {
  const MediaReference& first = *media.front().medium;
  check(!first.sources.empty(), "a medium without bytes");
  if (first.is_sound()) return decode_sound(first, *processors.sounds, media.front().rows);
  if (first.kind == MediaKind::kImage) return decode_image(first, *processors.images, media.front().rows);
  if (first.sources.front().frame >= 0) return decode_video_file(media, *processors.videos);
  TimePatches patches(media.front(), *processors.videos);
  for (const MediaSource& source : first.sources) patches.add(decode_source(source), name_of(source));
}

}  // namespace megalith::data
