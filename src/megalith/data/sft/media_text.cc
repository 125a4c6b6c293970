// The number of tokens follows from the headers of images and videos alone. Times of frames are LLaMA-Factory's: a list
// of images counts as sampled with video_fps, a frame of a file has the time that its number has at the average rate,
// and a time patch is named by the mean of the times of its first and last frame.
#include "megalith/data/sft/media_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/data/decode_media_internal.h"
#include "megalith/media/image_header.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/video_file.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;

// Returns the source with the path at which its file lies.
MediaSource find_source(MediaSource source, const char* what, const fs::path& media_dir) {
  if (source.held) return source;
  const fs::path inside = media_dir / source.file;  // the file itself if it is absolute
  const fs::path path = fs::is_regular_file(inside) ? inside : fs::path(source.file);
  check<DataError>(fs::is_regular_file(path), "the {} {} does not exist (media_dir is {})", what, source.file,
                   media_dir.empty() ? "not set" : media_dir.string());
  source.file = path.string();
  return source;
}

media::ImageSize size_of(const MediaSource& source) {
  const media::ImageHeader header = source.held ? media::read_image_header(*source.held, name_of(source))
                                                : media::read_image_header(fs::path(source.file));
  return {header.width, header.height};
}

// The frames that are taken of a video.
struct Frames {
  std::vector<MediaSource> sources;
  std::vector<double> times;  // seconds from the beginning, one per frame
  media::ImageSize size;
  double per_second = 1;
  std::string name;  // in messages
};

Frames frames_of_list(const std::vector<MediaSource>& sources, const MediaSettings& settings) {
  Frames frames{.per_second = settings.video_fps};
  for (const MediaSource& given : sources) {
    const MediaSource source = find_source(given, "frame", settings.media_dir);
    const media::ImageSize size = size_of(source);
    if (frames.sources.empty()) frames.size = size, frames.name = name_of(source);
    check<DataError>(size == frames.size,
                     "{}: the frame has {} x {} pixels, and the first one, {}, {} x {}; all frames "
                     "of a video have one size",
                     name_of(source), size.width, size.height, frames.name, frames.size.width, frames.size.height);
    frames.times.push_back(static_cast<double>(frames.sources.size()) / settings.video_fps);
    frames.sources.push_back(source);
  }
  return frames;
}

Frames frames_of_file(const MediaSource& given, const MediaSettings& settings) {
  const MediaSource file = find_source(given, "video", settings.media_dir);
  const media::VideoInfo info =
      file.held ? media::read_video_info(*file.held, name_of(file)) : media::read_video_info(fs::path(file.file));
  Frames frames{.size = info.size, .name = name_of(file)};
  for (const int64_t number :
       media::sampled_frames(info.frames, info.seconds, settings.video_fps, settings.video_maxlen)) {
    frames.sources.push_back(file);
    frames.sources.back().frame = number;
    frames.times.push_back(static_cast<double>(number) / (info.per_second > 0 ? info.per_second : settings.video_fps));
  }
  const auto count = static_cast<double>(frames.sources.size());
  frames.per_second = info.seconds > 0 ? count / info.seconds : settings.video_fps;
  return frames;
}

Frames frames_of(const std::vector<MediaSource>& sources, const MediaSettings& settings) {
  return sources.front().frame < 0 ? frames_of_list(sources, settings) : frames_of_file(sources.front(), settings);
}

// A medium, and the text before it in place of the marker.
struct PlacedMedium {
  std::string before;  // the time of a block of a video; otherwise empty
  MediaReference medium;
};

// Both throw a DataError that names the file for one that is missing or cannot be read.
PlacedMedium place_image(const MediaSource& given, const MediaSettings& settings) {
  const MediaSource source = find_source(given, "image", settings.media_dir);
  const media::PatchGrid grid = settings.images->grid(size_of(source), name_of(source));
  return {.medium = {.sources = {source}, .grid = {grid.t, grid.h, grid.w}, .tokens = settings.images->tokens(grid)}};
}

// A video is one medium, or one per time patch with MediaSettings::video_blocks.
std::vector<PlacedMedium> place_video(const std::vector<MediaSource>& sources, const MediaSettings& settings) {
  check<DataError>(settings.videos != nullptr, "the record has a video, and this run's model takes none");
  const Frames frames = frames_of(sources, settings);
  const auto count = std::ssize(frames.sources);
  const media::PatchGrid grid = settings.videos->grid(count, frames.size, frames.name);
  const int64_t per_patch = settings.videos->frames_per_patch();
  const double seconds = static_cast<double>(per_patch) / frames.per_second;
  if (!settings.video_blocks)
    return {{.medium = {.sources = frames.sources,
                        .grid = {grid.t, grid.h, grid.w},
                        .tokens = settings.videos->tokens(grid),
                        .video = true,
                        .seconds = seconds}}};
  std::vector<PlacedMedium> blocks;
  for (int64_t first = 0; first < count; first += per_patch) {
    const int64_t last = std::min(first + per_patch, count) - 1;
    const double time = (frames.times[static_cast<size_t>(first)] + frames.times[static_cast<size_t>(last)]) / 2;
    blocks.push_back({.before = fmt::format("<{:.1f} seconds>", time),
                      .medium = {.sources = {frames.sources.begin() + first, frames.sources.begin() + last + 1},
                                 .grid = {1, grid.h, grid.w},
                                 .tokens = settings.videos->tokens({1, grid.h, grid.w}),
                                 .video = true,
                                 .seconds = seconds}});
  }
  return blocks;
}

int64_t count_markers(const std::string& text, std::string_view marker) {
  int64_t count = 0;
  for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, at + 1)) ++count;
  return count;
}

void check_markers(const std::vector<Message*>& messages, std::string_view marker, size_t media, const char* what) {
  int64_t markers = 0;
  for (const Message* message : messages) markers += count_markers(message->content, marker);
  check<DataError>(markers == static_cast<int64_t>(media), "the text has {} {} {} and the record {} {}(s)", markers,
                   markers == 1 ? "marker" : "markers", marker, media, what);
}

// Takes the media of a conversation as their markers occur.
class Expansion {
 public:
  Expansion(const Conversation& conversation, const MediaSettings& settings)
      : conversation_(conversation), settings_(settings) {}

  std::string expand(const std::string& content) {
    std::string text;
    size_t from = 0;
    while (true) {
      const size_t image = content.find(kImageMarker, from), video = content.find(kVideoMarker, from);
      const size_t at = std::min(image, video);
      if (at == std::string::npos) return text.append(content, from);
      text.append(content, from, at - from);
      if (image < video) {
        add(place_image(conversation_.images[images_++], settings_), text);
      } else {
        for (PlacedMedium& block : place_video(conversation_.videos[videos_++], settings_)) add(std::move(block), text);
      }
      from = at + (image < video ? kImageMarker : kVideoMarker).size();
    }
  }
  std::vector<MediaReference> media() && { return std::move(media_); }

 private:
  void add(PlacedMedium placed, std::string& text) {
    if (settings_.decode_all || settings_.skip_broken) check_decodes(placed.medium);
    text.append(placed.before).append(settings_.start);
    for (int64_t i = 0; i < placed.medium.tokens; ++i)
      text += placed.medium.video ? settings_.video_pad : settings_.image_pad;
    text += settings_.end;
    media_.push_back(std::move(placed.medium));
  }

  const Conversation& conversation_;
  const MediaSettings& settings_;
  size_t images_ = 0, videos_ = 0;  // taken
  std::vector<MediaReference> media_;
};

// The runs of a token: where each begins, and how long it is.
struct Run {
  int64_t first = 0;
  int64_t tokens = 0;
  bool video = false;
};

std::vector<Run> runs_of(const std::vector<int32_t>& ids, const MediaPads& pads) {
  std::vector<Run> runs;
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    if (id != pads.image && id != pads.video) continue;
    const bool video = id == pads.video;
    const bool continues = !runs.empty() && runs.back().first + runs.back().tokens == i && runs.back().video == video;
    if (!continues) runs.push_back({i, 0, video});
    ++runs.back().tokens;
  }
  return runs;
}

}  // namespace

std::vector<MediaReference> expand_media(Conversation& conversation, const MediaSettings& settings) {
  std::vector<Message*> messages;
  for (Message& message : conversation.prompt) messages.push_back(&message);
  const bool pair = conversation.responses.size() > 1;
  for (Message& response : conversation.responses) {
    for (const std::string_view marker : {kImageMarker, kVideoMarker})
      check<DataError>(!pair || count_markers(response.content, marker) == 0,
                       "an answer of a preference pair holds {}; images and videos belong to the prompt, which both "
                       "answers share",
                       marker);
    if (!pair) messages.push_back(&response);
  }
  check_markers(messages, kImageMarker, conversation.images.size(), "image");
  // A text may hold <video> where the model takes none.
  if (settings.videos || !conversation.videos.empty())
    check_markers(messages, kVideoMarker, conversation.videos.size(), "video");
  if (conversation.images.empty() && conversation.videos.empty()) return {};
  Expansion expansion(conversation, settings);
  for (Message* message : messages) message->content = expansion.expand(message->content);
  return std::move(expansion).media();
}

int64_t count_runs(const std::vector<int32_t>& ids, const MediaPads& pads) { return std::ssize(runs_of(ids, pads)); }

void attach_media(Sequence& row, std::vector<MediaReference> media, const MediaPads& pads, bool from_the_end) {
  const std::vector<Run> runs = runs_of(row.ids, pads);
  const auto foreign =
      "a text holds the placeholder token of images or videos itself; only the markers <image> and <video> stand for "
      "media";
  check<DataError>(runs.size() <= media.size(), "{}", foreign);
  if (from_the_end) media.erase(media.begin(), media.end() - std::ssize(runs));
  media.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    check<DataError>(runs[i].tokens == media[i].tokens && runs[i].video == media[i].video, "{}", foreign);
    media[i].first = runs[i].first;
    std::fill_n(row.labels.begin() + runs[i].first, runs[i].tokens, kIgnoredLabel);
  }
  row.media = std::move(media);
}

}  // namespace megalith::data
