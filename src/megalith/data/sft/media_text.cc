// The number of tokens follows from the headers of the files alone. Times of frames are LLaMA-Factory's: a list
// of images counts as sampled with video_fps, a frame of a file has the time that its number has at the average rate,
// and a time patch is named by the mean of the times of its first and last frame.
#include "megalith/data/sft/media_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/data/decode_media_internal.h"
#include "megalith/data/media_segment_internal.h"
#include "megalith/media/image_header.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
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
  const media::VideoInfo info = file.held ? media::read_video_info(*file.held, name_of(file, "a video"))
                                          : media::read_video_info(fs::path(file.file));
  Frames frames{.size = info.size, .name = name_of(file, "a video")};
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
  check<DataError>(settings.images != nullptr, "the record has an image, and this run's model takes none");
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
                        .kind = MediaKind::kVideo,
                        .seconds = seconds}}};
  std::vector<PlacedMedium> blocks;
  for (int64_t first = 0; first < count; first += per_patch) {
    const int64_t last = std::min(first + per_patch, count) - 1;
    const double time = (frames.times[static_cast<size_t>(first)] + frames.times[static_cast<size_t>(last)]) / 2;
    blocks.push_back({.before = fmt::format("<{:.1f} seconds>", time),
                      .medium = {.sources = {frames.sources.begin() + first, frames.sources.begin() + last + 1},
                                 .grid = {1, grid.h, grid.w},
                                 .tokens = settings.videos->tokens({1, grid.h, grid.w}),
                                 .kind = MediaKind::kVideo,
                                 .seconds = seconds}});
  }
  return blocks;
}

MediaReference sound_of_size(MediaSource source, const media::SoundHeader& header, const MediaSettings& settings) {
  const int64_t frames = settings.sounds->frames(header, name_of(source, "a sound"));
  return {.sources = {std::move(source)},
          .grid = {frames, 1, 1},
          .tokens = settings.sounds->tokens(frames),
          .kind = MediaKind::kSound};
}

MediaReference place_sound(const MediaSource& given, const MediaSettings& settings) {
  check<DataError>(settings.sounds != nullptr, "the record has a sound, and this run's model takes none");
  MediaSource source = find_source(given, "sound", settings.media_dir);
  const media::SoundHeader header = sound_header(source);
  return sound_of_size(std::move(source), header, settings);
}

// Returns the sound of a video's own file; std::nullopt if it has none, or is a list of images.
std::optional<MediaReference> sound_in_file(const MediaReference& video, const MediaSettings& settings) {
  MediaSource file = video.sources.front();
  if (file.frame < 0) return std::nullopt;
  const std::optional<media::SoundHeader> header = sound_in_video(file);
  if (!header) return std::nullopt;
  file.frame = 0;
  return sound_of_size(std::move(file), *header, settings);
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

// The markers that stand for media of this run.
std::vector<std::string_view> taken_markers(const MediaSettings& settings) {
  std::vector<std::string_view> markers;
  if (settings.images) markers.push_back(kImageMarker);
  if (settings.videos) markers.push_back(kVideoMarker);
  if (settings.sounds) markers.push_back(kSoundMarker);
  return markers;
}

// Takes the media of a conversation as their markers occur.
class Expansion {
 public:
  Expansion(const Conversation& conversation, const MediaSettings& settings)
      : conversation_(conversation),
        settings_(settings),
        pairs_sounds_(settings.audio_in_video && !conversation.videos.empty() && !conversation.sounds.empty()) {
    check<DataError>(!pairs_sounds_ || conversation.videos.size() == conversation.sounds.size(),
                     "the record has {} video(s) and {} sound(s); with use_audio_in_video each video has its sound, or "
                     "none has and those of the files are taken",
                     conversation.videos.size(), conversation.sounds.size());
  }

  std::string expand(const std::string& content) {
    std::string text;
    size_t from = 0;
    while (true) {
      // Markers of media that the record does not have are text.
      const size_t image = find(content, kImageMarker, conversation_.images, from);
      const size_t video = find(content, kVideoMarker, conversation_.videos, from);
      const size_t sound = find(content, kSoundMarker, conversation_.sounds, from);
      const size_t at = std::min({image, video, sound});
      if (at == std::string::npos) return text.append(content, from);
      text.append(content, from, at - from);
      from = at + (at == image ? kImageMarker : at == video ? kVideoMarker : kSoundMarker).size();
      if (at == image) {
        add(place_image(conversation_.images[images_++], settings_), text);
      } else if (at == video) {
        from = add_video(content, from, text);
      } else {
        check<DataError>(!pairs_sounds_, "an <audio> follows no <video>, although use_audio_in_video pairs them");
        add({.medium = place_sound(conversation_.sounds[sounds_++], settings_)}, text);
      }
    }
  }
  std::vector<MediaReference> media() && { return std::move(media_); }

 private:
  template <typename Media>
  static size_t find(const std::string& content, std::string_view marker, const Media& media, size_t from) {
    return media.empty() ? std::string::npos : content.find(marker, from);
  }

  // Adds a video, with its sound if it has one. Returns where the text continues.
  size_t add_video(const std::string& content, size_t from, std::string& text) {
    std::vector<PlacedMedium> blocks = place_video(conversation_.videos[videos_++], settings_);
    if (!pairs_sounds_) {
      std::optional<MediaReference> own;
      if (settings_.audio_in_video) own = sound_in_file(blocks.front().medium, settings_);
      if (own) add_merged(std::move(blocks.front().medium), std::move(*own), text);
      for (size_t i = own ? 1 : 0; i < blocks.size(); ++i) add(std::move(blocks[i]), text);
      return from;
    }
    // Blanks may stand between both markers, and stay in the text.
    const size_t next = content.find_first_not_of(" \t\r\n", from);
    check<DataError>(next != std::string::npos && content.compare(next, kSoundMarker.size(), kSoundMarker) == 0,
                     "a <video> is not followed by its <audio>, which use_audio_in_video needs: write <video><audio>");
    add_merged(std::move(blocks.front().medium), place_sound(conversation_.sounds[sounds_++], settings_), text);
    text.append(content, from, next - from);
    return next + kSoundMarker.size();
  }

  void add(PlacedMedium placed, std::string& text) {
    look_at(placed.medium);
    const MediaReference& medium = placed.medium;
    text.append(placed.before).append(medium.is_sound() ? settings_.sound_start : settings_.start);
    for (int64_t i = 0; i < medium.tokens; ++i)
      text += medium.is_sound()                  ? settings_.sound_pad
              : medium.kind == MediaKind::kVideo ? settings_.video_pad
                                                 : settings_.image_pad;
    text += medium.is_sound() ? settings_.sound_end : settings_.end;
    media_.push_back(std::move(placed.medium));
  }

  // As Hugging Face's processor writes both streams: <|vision_start|><|audio_start|>…<|audio_end|><|vision_end|>.
  void add_merged(MediaReference video, MediaReference sound, std::string& text) {
    sound.kind = MediaKind::kSoundOfVideo;
    look_at(video);
    look_at(sound);
    text.append(settings_.start).append(settings_.sound_start);
    for (const bool is_sound : layout::merged_order(segment_of(video, &sound), settings_.positions))
      text += is_sound ? settings_.sound_pad : settings_.video_pad;
    text.append(settings_.sound_end).append(settings_.end);
    media_.push_back(std::move(video));
    media_.push_back(std::move(sound));
  }

  void look_at(const MediaReference& medium) const {
    if (settings_.decode_all || settings_.skip_broken) check_decodes(medium);
  }

  const Conversation& conversation_;
  const MediaSettings& settings_;
  const bool pairs_sounds_;                      // each video takes the sound whose marker follows its own
  size_t images_ = 0, videos_ = 0, sounds_ = 0;  // taken
  std::vector<MediaReference> media_;
};

// A run of placeholders: where it begins, and how many it has of each kind.
struct Run {
  int64_t first = 0;
  int64_t images = 0, videos = 0, sounds = 0;
  int64_t tokens() const { return images + videos + sounds; }
};

// Placeholders beside one another are one run, for two media never touch: each has a start and an end.
std::vector<Run> runs_of(const std::vector<int32_t>& ids, const MediaPads& pads) {
  std::vector<Run> runs;
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    if (id != pads.image && id != pads.video && id != pads.sound) continue;
    if (runs.empty() || runs.back().first + runs.back().tokens() != i) runs.push_back({.first = i});
    ++(id == pads.image ? runs.back().images : id == pads.video ? runs.back().videos : runs.back().sounds);
  }
  return runs;
}

// The run that a medium becomes, with its sound if it has one.
Run run_of(const MediaReference& medium, const MediaReference* sound) {
  Run run{.first = medium.first};
  (medium.is_sound() ? run.sounds : medium.kind == MediaKind::kVideo ? run.videos : run.images) = medium.tokens;
  if (sound != nullptr) run.sounds = sound->tokens;
  return run;
}

}  // namespace

std::vector<MediaReference> expand_media(Conversation& conversation, const MediaSettings& settings) {
  std::vector<Message*> messages;
  for (Message& message : conversation.prompt) messages.push_back(&message);
  const bool pair = conversation.responses.size() > 1;
  for (Message& response : conversation.responses) {
    for (const std::string_view marker : taken_markers(settings))
      check<DataError>(!pair || count_markers(response.content, marker) == 0,
                       "an answer of a preference pair holds {}; media belong to the prompt, which both answers share",
                       marker);
    if (!pair) messages.push_back(&response);
  }
  // A text may hold the marker of what the model does not take.
  if (settings.images || !conversation.images.empty())
    check_markers(messages, kImageMarker, conversation.images.size(), "image");
  if (settings.videos || !conversation.videos.empty())
    check_markers(messages, kVideoMarker, conversation.videos.size(), "video");
  if (settings.sounds || !conversation.sounds.empty())
    check_markers(messages, kSoundMarker, conversation.sounds.size(), "sound");
  if (!conversation.has_media()) return {};
  Expansion expansion(conversation, settings);
  for (Message* message : messages) message->content = expansion.expand(message->content);
  return std::move(expansion).media();
}

std::vector<int32_t> MediaPads::all() const {
  std::vector<int32_t> pads;
  for (const int32_t pad : {image, video, sound})
    if (pad >= 0) pads.push_back(pad);
  return pads;
}

int64_t count_runs(const std::vector<int32_t>& ids, const MediaPads& pads) { return std::ssize(runs_of(ids, pads)); }

int64_t count_runs(std::span<const MediaReference> media) {
  return std::ranges::count_if(media,
                               [](const MediaReference& medium) { return medium.kind != MediaKind::kSoundOfVideo; });
}

void attach_media(Sequence& row, std::vector<MediaReference> media, const MediaPads& pads, bool from_the_end) {
  const std::vector<Run> runs = runs_of(row.ids, pads);
  const auto foreign =
      "a text holds the placeholder token of a medium itself; only the markers <image>, <video> and <audio> stand for "
      "media";
  const int64_t surplus = count_runs(media) - std::ssize(runs);
  check<DataError>(surplus >= 0, "{}", foreign);
  size_t run = 0;
  int64_t skipped = from_the_end ? surplus : 0;
  row.media.clear();
  for (size_t i = 0; i < media.size() && (run < runs.size() || skipped > 0); ++i) {
    if (media[i].kind == MediaKind::kSoundOfVideo) continue;  // taken with its video
    if (skipped-- > 0) continue;
    const MediaReference* const sound = sound_of(media, i);
    const Run& found = runs[run++];
    const Run expected = run_of(media[i], sound);
    check<DataError>(
        found.images == expected.images && found.videos == expected.videos && found.sounds == expected.sounds, "{}",
        foreign);
    std::fill_n(row.labels.begin() + found.first, found.tokens(), kIgnoredLabel);
    for (size_t j = i; j <= (sound != nullptr ? i + 1 : i); ++j) {
      media[j].first = found.first;
      row.media.push_back(media[j]);
    }
  }
}

}  // namespace megalith::data
