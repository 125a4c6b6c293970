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
#include "megalith/media/video_file.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {
namespace {

using media::PatchGrid;

PatchGrid grid_of(const MediaReference& medium) { return {medium.grid[0], medium.grid[1], medium.grid[2]}; }

// Returns use(bytes) for the bytes that the source refers to.
template <typename Use>
auto with_bytes(const MediaSource& source, const Use& use) {
  if (source.held) return use(std::string_view(*source.held));
  const io::MappedFile file{std::filesystem::path(source.file)};
  const auto size = static_cast<int64_t>(file.size());
  const int64_t bytes = source.bytes < 0 ? size - source.offset : source.bytes;
  check<DataError>(source.offset >= 0 && bytes >= 0 && source.offset <= size - bytes,
                   "{}: the file has become shorter since it was tokenized", name_of(source));
  return use(std::string_view(file.text(static_cast<uint64_t>(source.offset), static_cast<uint64_t>(bytes))));
}

media::Image decode_source(const MediaSource& source) {
  return with_bytes(source, [&](std::string_view bytes) { return media::decode_image(bytes, name_of(source)); });
}

// Decodes frames of the video file that the source refers to.
void read_frames(const MediaSource& source, std::span<const int64_t> numbers,
                 const std::function<void(size_t i, media::Image frame)>& take) {
  if (!source.held && source.bytes < 0) return media::read_video_frames(source.file, numbers, take);
  with_bytes(source, [&](std::string_view bytes) { media::read_video_frames(bytes, name_of(source), numbers, take); });
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
  const std::string file = name_of(source);
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

std::string name_of(const MediaSource& source) {
  if (source.held && source.file.empty()) return source.frame < 0 ? "an image of the record" : "a video of the record";
  if (source.held) return source.file;
  if (source.bytes < 0) return source.file;
  return fmt::format("{}, bytes {} to {}", source.file, source.offset, source.offset + source.bytes);
}

void check_decodes(const MediaReference& medium) {
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
  return first.video && second.video && last.frame >= 0 && next.frame >= last.frame && same;
}

void decode_media(std::span<const MediumRows> media, const MediaProcessors& processors) {
  const MediaReference& first = *media.front().medium;
  check(!first.sources.empty(), "a medium without bytes");
  if (!first.video) return decode_image(first, *processors.images, media.front().rows);
  if (first.sources.front().frame >= 0) return decode_video_file(media, *processors.videos);
  TimePatches patches(media.front(), *processors.videos);
  for (const MediaSource& source : first.sources) patches.add(decode_source(source), name_of(source));
}

}  // namespace megalith::data
