#include "megalith/data/collate_media_internal.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/parallel_for.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {
namespace {

// The rows of the tower's input: patches or frames.
int64_t input_rows(const MediaReference& medium) { return medium.grid[0] * medium.grid[1] * medium.grid[2]; }

// The different media of a micro-batch that one tower takes, in the order in which they first occur, and where their
// rows begin.
class MediaList {
 public:
  // Returns the tower's first output row of the medium.
  int64_t add(const MediaReference& medium) {
    const auto [place, is_new] =
        first_rows_.try_emplace(std::tuple(medium.sources, medium.grid, medium.kind), output_rows_);
    if (is_new) {
      media_.push_back(&medium);
      begins_.push_back(input_rows_);
      input_rows_ += input_rows(medium);
      output_rows_ += medium.tokens;
    }
    return place->second;
  }
  const std::vector<const MediaReference*>& media() const { return media_; }
  int64_t rows() const { return input_rows_; }
  // Returns where the rows of each medium go in `all`, which has rows() of this width.
  std::vector<MediumRows> rows_in(at::Tensor& all, int64_t width) const {
    auto* rows = all.mutable_data_ptr<float>();
    std::vector<MediumRows> result;
    for (size_t i = 0; i < media_.size(); ++i) result.push_back({media_[i], rows + begins_[i] * width});
    return result;
  }

 private:
  std::map<std::tuple<std::vector<MediaSource>, std::array<int64_t, 3>, MediaKind>, int64_t> first_rows_;
  std::vector<const MediaReference*> media_;
  std::vector<int64_t> begins_;
  int64_t input_rows_ = 0, output_rows_ = 0;
};

// Refuses media that the model cannot take.
void check_processors(const MediaReference& medium, const MediaProcessors& processors) {
  const char* const name = medium.is_sound() ? "sounds" : medium.kind == MediaKind::kVideo ? "videos" : "images";
  const bool taken = medium.is_sound()                  ? processors.sounds != nullptr
                     : medium.kind == MediaKind::kVideo ? processors.videos != nullptr
                                                        : processors.images != nullptr;
  check<ConfigError>(taken,
                     "the samples have {}, and this run's model has no {} tower. Train a model with one, or leave the "
                     "{} out",
                     name, medium.is_sound() ? "audio" : "vision", name);
}

// The media of all strips, and the output row of every token; -1 for those of the other tower and for text.
struct PlacedMedia {
  MediaList visual, sounds;
  std::vector<int64_t> visual_rows, audio_rows;
};

// Writes the rows of one medium; a video and its sound share their tokens, which say themselves which stream is theirs:
// the first is the video's.
void place_medium(std::span<const MediaReference> media, size_t i, const std::vector<int32_t>& ids, int64_t to_token,
                  PlacedMedia& placed) {
  const MediaReference& medium = media[i];
  const MediaReference* const sound = sound_of(media, i);
  int64_t visual_row = medium.is_sound() ? -1 : placed.visual.add(medium);
  int64_t audio_row = medium.is_sound() ? placed.sounds.add(medium) : sound != nullptr ? placed.sounds.add(*sound) : -1;
  const int32_t first_id = ids[static_cast<size_t>(medium.first)];
  const int64_t tokens = medium.tokens + (sound != nullptr ? sound->tokens : 0);
  int64_t sounds = 0;
  for (int64_t token = medium.first; token < medium.first + tokens; ++token) {
    const bool is_sound = medium.is_sound() || ids[static_cast<size_t>(token)] != first_id;
    sounds += is_sound ? 1 : 0;
    (is_sound ? placed.audio_rows : placed.visual_rows)[static_cast<size_t>(token + to_token)] =
        is_sound ? audio_row++ : visual_row++;
  }
  check(sounds == tokens - (medium.is_sound() ? 0 : medium.tokens), "{} tokens of sound among {}", sounds, tokens);
}

PlacedMedia place_media(std::span<const Strip> strips, int64_t total) {
  PlacedMedia placed{.visual_rows = std::vector<int64_t>(static_cast<size_t>(total), -1),
                     .audio_rows = std::vector<int64_t>(static_cast<size_t>(total), -1)};
  int64_t begin = 0;
  for (const Strip& strip : strips) {
    const std::vector<MediaReference>& media = strip.row->media;
    for (size_t i = 0; i < media.size(); ++i) {
      if (media[i].first < strip.begin || media[i].first >= strip.begin + strip.tokens) continue;
      if (media[i].kind == MediaKind::kSoundOfVideo) continue;  // placed with its video
      const MediaReference* const sound = sound_of(media, i);
      const int64_t end = media[i].first + media[i].tokens + (sound != nullptr ? sound->tokens : 0);
      check(end <= strip.begin + strip.tokens, "a medium at the end of a sequence");
      place_medium(media, i, strip.row->ids, begin - strip.begin, placed);
    }
    begin += strip.length;
  }
  return placed;
}

at::Tensor long_tensor(const std::vector<int64_t>& values) {
  at::Tensor result = at::empty({std::ssize(values)}, at::kLong);
  std::ranges::copy(values, result.mutable_data_ptr<int64_t>());
  return result;
}

// Sets everything but pixels and frames.
void describe_media(const PlacedMedia& placed, MicroBatch& batch) {
  if (!placed.visual.media().empty()) {
    batch.visual_rows = long_tensor(placed.visual_rows);
    batch.grids = at::empty({std::ssize(placed.visual.media()), 3}, at::kLong);
    auto* grids = batch.grids.mutable_data_ptr<int64_t>();
    for (const MediaReference* medium : placed.visual.media())
      grids = std::copy(medium->grid.begin(), medium->grid.end(), grids);
  }
  if (placed.sounds.media().empty()) return;
  batch.audio_rows = long_tensor(placed.audio_rows);
  std::vector<int64_t> lengths;
  for (const MediaReference* sound : placed.sounds.media()) lengths.push_back(sound->grid[0]);
  batch.audio_lengths = long_tensor(lengths);
}

// Returns the numbers in a row of patches.
int64_t patch_width(const MediaProcessors& processors) {
  check<ConfigError>(processors.images == nullptr || processors.videos == nullptr ||
                         processors.images->row_width() == processors.videos->row_width(),
                     "the patches of images and videos differ in size: preprocessor_config.json and "
                     "video_preprocessor_config.json belong to different models");
  return processors.images != nullptr ? processors.images->row_width() : processors.videos->row_width();
}

// Decodes everything, several media at a time.
void decode_all(const PlacedMedia& placed, const MediaProcessors& processors, int threads, MicroBatch& batch) {
  std::vector<MediumRows> media;
  if (placed.visual.rows() > 0) {
    const int64_t width = patch_width(processors);
    batch.pixels = at::empty({placed.visual.rows(), width}, at::kFloat);
    media = placed.visual.rows_in(batch.pixels, width);
  }
  if (placed.sounds.rows() > 0) {
    const int64_t width = processors.sounds->row_width();
    batch.audio_features = at::empty({placed.sounds.rows(), width}, at::kFloat);
    for (const MediumRows& sound : placed.sounds.rows_in(batch.audio_features, width)) media.push_back(sound);
  }
  // Neighbours of one video file are one piece of work.
  std::vector<size_t> ends;
  for (size_t i = 0; i < media.size(); ++i) {
    if (i > 0 && continues(*media[i - 1].medium, *media[i].medium)) ends.pop_back();
    ends.push_back(i + 1);
  }
  io::parallel_for(std::ssize(ends), threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    const size_t from = at == 0 ? 0 : ends[at - 1];
    decode_media(std::span<const MediumRows>(media).subspan(from, ends[at] - from), processors);
  });
}

}  // namespace

void collate_media(std::span<const Sequence* const> rows, std::span<const Strip> strips, int64_t total, bool decode,
                   const MediaProcessors& processors, int threads, MicroBatch& batch) {
  bool any = false;
  for (const Sequence* row : rows) {
    for (const MediaReference& medium : row->media) check_processors(medium, processors);
    any = any || !row->media.empty();
  }
  if (!any) return;
  const PlacedMedia placed = place_media(strips, total);
  describe_media(placed, batch);
  if (decode) decode_all(placed, processors, threads, batch);
}

}  // namespace megalith::data
