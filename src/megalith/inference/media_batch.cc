// Rows are read from left to right, and each run of placeholders takes the next medium of its kind. Images and videos
// become one list in the order of the tokens, so that output rows are numbered in that order and every range of rows
// has a range of media. Sounds are a list of their own.
#include "megalith/inference/media_batch.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "megalith/base/error.h"

namespace megalith::inference {

namespace {

using layout::TokenSegment;
using nn::ImageGrid;

// The media of one kind, taken one after the other.
struct MediaList {
  const char* name;        // "image"
  const char* grids_name;  // its grids in files
  TokenSegment::Kind kind;
  int64_t placeholder;
  at::Tensor pixels;
  std::vector<ImageGrid> grids;
  std::vector<double> seconds;  // by medium
  // The medium that comes next, its first patch, and how many of its time patches have been used.
  size_t next = 0;
  int64_t patch = 0;
  int64_t frames = 0;
  // The output row of the current medium's first token.
  int64_t output = 0;
};

MediaList make_list(const char* name, TokenSegment::Kind kind, int64_t placeholder, const at::Tensor& pixels,
                    const at::Tensor& grids, const nn::VisionShape& shape) {
  const bool image = kind == TokenSegment::Kind::kImage;
  MediaList list{.name = name,
                 .grids_name = image ? "image_grid_thw" : "video_grid_thw",
                 .kind = kind,
                 .placeholder = placeholder,
                 .pixels = pixels,
                 .grids = nn::image_grids(grids, shape.merge)};
  list.seconds.assign(list.grids.size(), 1);
  const char* const pixels_name = image ? "pixel_values" : "pixel_values_videos";
  check<DataError>(pixels.defined() == grids.defined(), "{} and {} belong together, but only {} is given", pixels_name,
                   list.grids_name, pixels.defined() ? pixels_name : list.grids_name);
  if (!pixels.defined()) return list;
  check<ConfigError>(placeholder >= 0, "{} is given, but config.json has no {}_token_id: the model takes no {}s",
                     pixels_name, name, name);
  const int64_t patches = nn::total_patches(list.grids), width = shape.patch_pixels();
  check<DataError>(pixels.dim() == 2 && pixels.size(0) == patches && pixels.size(1) == width,
                   "{} has the shape {}; the grids in {} need [{}, {}]: a row per patch of {} numbers", pixels_name,
                   fmt::join(pixels.sizes(), " x "), list.grids_name, patches, width, width);
  for (size_t i = 0; i < list.grids.size(); ++i)
    check<DataError>(!image || list.grids[i].time == 1,
                     "image {} in image_grid_thw has {} time patches; an image has 1, and videos belong in"
                     " video_grid_thw",
                     i, list.grids[i].time);
  return list;
}

// The sounds, taken one after the other.
struct SoundList {
  int64_t placeholder = -1;
  at::Tensor features;           // [sounds, m, frames]
  std::vector<int64_t> lengths;  // frames of each
  size_t next = 0;
};

SoundList make_sounds(const MediaInput& media, const model::ModelConfig& config) {
  SoundList list{.placeholder = config.media->audio};
  check<DataError>(
      media.sounds.defined() == media.sound_lengths.defined(),
      "input_features and the frames of each sound (feature_attention_mask or audio_feature_lengths) belong"
      " together, but only one of them is given");
  if (!media.sounds.defined()) return list;
  const int64_t bins = config.audio->mel_bins;
  check<DataError>(
      media.sounds.dim() == 3 && media.sounds.size(1) == bins && media.sound_lengths.numel() == media.sounds.size(0),
      "input_features has the shape {}; the model needs [{}, {}, frames]: bands of each sound",
      fmt::join(media.sounds.sizes(), " x "), media.sound_lengths.numel(), bins);
  list.features = media.sounds;
  list.lengths = nn::audio_lengths(media.sound_lengths);
  for (size_t i = 0; i < list.lengths.size(); ++i)
    check<DataError>(list.lengths[i] <= media.sounds.size(2), "sound {} has {} frames, but input_features only {}", i,
                     list.lengths[i], media.sounds.size(2));
  return list;
}

// The sizes of a tower that the model does not have, for lists without media.
nn::VisionShape vision_shape(const model::ModelConfig& config) { return config.vision.value_or(nn::VisionShape{}); }

// Places media on the rows of a batch.
class Placer {
 public:
  Placer(const MediaInput& media, const model::ModelConfig& config)
      : settings_(config.media->positions),
        audio_(config.audio),
        images_(make_list("image", TokenSegment::Kind::kImage, config.media->image, media.pixels, media.grids,
                          vision_shape(config))),
        videos_(make_list("video", TokenSegment::Kind::kVideo, config.media->video, media.video_pixels,
                          media.video_grids, vision_shape(config))),
        sounds_(make_sounds(media, config)) {
    if (!media.video_seconds.defined()) return;
    check<DataError>(media.video_seconds.dim() == 1 && media.video_seconds.numel() == std::ssize(videos_.grids),
                     "second_per_grid_ts has {} numbers for {} videos; it needs one per video",
                     media.video_seconds.numel(), videos_.grids.size());
    const at::Tensor seconds = media.video_seconds.to(at::kDouble).contiguous();
    std::copy_n(seconds.const_data_ptr<double>(), seconds.numel(), videos_.seconds.begin());
  }

  MediaBatch place(const at::Tensor& ids, const at::Tensor& mask) {
    const int64_t rows = ids.size(0), length = ids.size(1);
    batch_.visual_rows = at::full({rows, length}, -1, at::kLong);
    if (sounds_.features.defined()) batch_.audio_rows = at::full({rows, length}, -1, at::kLong);
    batch_.coordinates = at::zeros({3, rows, length}, at::kFloat);
    for (row_ = 0; row_ < rows; ++row_) {
      batch_.begins.push_back(end_);
      place_row(ids[row_].contiguous(), mask.defined() ? mask[row_].contiguous() : at::Tensor());
    }
    batch_.begins.push_back(end_);
    for (const MediaList* list : {&images_, &videos_})
      check<DataError>(list->next == list->grids.size(),
                       "the rows have placeholders for {} of the {} {}s in {}; leave out the others, or give the ids"
                       " that were made with them",
                       list->next, list->grids.size(), list->name, list->grids_name);
    check<DataError>(sounds_.next == sounds_.lengths.size(),
                     "the rows have placeholders for {} of the {} sounds in input_features; leave out the others, or"
                     " give the ids that were made with them",
                     sounds_.next, sounds_.lengths.size());
    // Only one family has fractions.
    if (settings_.time != layout::TimeRule::kSeconds) batch_.coordinates = batch_.coordinates.to(at::kLong);
    if (!frames_.empty()) {
      batch_.audio_features = frames_.size() == 1 ? frames_[0] : at::cat(frames_);
      batch_.audio_lengths = at::tensor(lengths_, at::kLong);
    }
    if (grids_.empty()) return std::move(batch_);
    batch_.pixels = parts_.size() == 1 ? parts_[0] : at::cat(parts_);
    batch_.grids = at::tensor(grids_, at::kLong).view({-1, 3});
    return std::move(batch_);
  }

 private:
  void place_row(const at::Tensor& ids, const at::Tensor& mask) {
    const auto* id = ids.const_data_ptr<int64_t>();
    std::vector<int64_t> columns;  // columns of tokens that are not padding
    for (int64_t column = 0; column < ids.numel(); ++column)
      if (!mask.defined() || mask.const_data_ptr<int64_t>()[column] != 0) columns.push_back(column);
    std::vector<TokenSegment> segments;
    for (size_t first = 0; first < columns.size();) {
      size_t end = first + 1;
      const auto token = [&](size_t i) { return id[columns[i]]; };
      const bool text = is_text(token(first));
      // A run of one placeholder, of those of a video and its sound in turns, or of text.
      const auto continues = [&](size_t i) {
        return text ? is_text(token(i)) : token(i) == token(first) || merges(token(i), token(first));
      };
      while (end < columns.size() && continues(end)) ++end;
      const std::span<const int64_t> run = std::span(columns).subspan(first, end - first);
      if (text)
        segments.push_back({.tokens = std::ssize(run)});
      else
        segments.push_back(place_run(id, run));
      first = end;
    }
    check<DataError>(videos_.frames == 0,
                     "row {} ends after {} of the {} time patches of video {}; each is a run of placeholders", row_,
                     videos_.frames, videos_.frames == 0 ? 0 : videos_.grids[videos_.next].time, videos_.next);
    const layout::TokenPositions positions = layout::token_positions(segments, settings_);
    const at::Tensor where = at::tensor(columns, at::kLong);
    int64_t axis = 0;
    for (const auto* values : {&positions.time, &positions.height, &positions.width})
      batch_.coordinates[axis++][row_].index_copy_(0, where, at::tensor(*values, at::kFloat));
  }

  // Returns the media that a token stands for; nullptr for text and sound.
  MediaList* list_of(int64_t token) {
    if (token == images_.placeholder) return &images_;
    return token == videos_.placeholder ? &videos_ : nullptr;
  }
  bool is_sound(int64_t token) const { return sounds_.placeholder >= 0 && token == sounds_.placeholder; }
  bool is_text(int64_t token) { return list_of(token) == nullptr && !is_sound(token); }
  // Whether tokens are those of a video and of a sound.
  bool merges(int64_t one, int64_t other) const {
    return (is_sound(one) && other == videos_.placeholder) || (is_sound(other) && one == videos_.placeholder);
  }

  // Gives the placeholders of a run their output rows.
  TokenSegment place_run(const int64_t* id, std::span<const int64_t> columns) {
    const auto heard = std::ranges::count_if(columns, [&](int64_t column) { return is_sound(id[column]); });
    const auto seen = std::ssize(columns) - heard;
    int64_t visual = 0, audio = 0;
    TokenSegment segment{.kind = TokenSegment::Kind::kAudio};
    if (seen > 0)
      segment =
          take(*list_of(id[*std::ranges::find_if(columns, [&](int64_t column) { return !is_sound(id[column]); })]),
               seen, visual);
    if (heard > 0) {
      audio = take_sound(heard);
      segment.tokens = heard;
    }
    if (seen > 0 && heard > 0) segment.kind = TokenSegment::Kind::kAudioInVideo;
    for (const int64_t column : columns) {
      const bool sound = is_sound(id[column]);
      (sound ? batch_.audio_rows : batch_.visual_rows)[row_][column] = sound ? audio++ : visual++;
    }
    return segment;
  }

  // Takes the next sound for `count` placeholders, and returns its first output row.
  int64_t take_sound(int64_t count) {
    check<DataError>(
        sounds_.next < sounds_.lengths.size(),
        "row {} has a run of {} placeholders of sound (id {}), but input_features has only {}, which are all"
        " used before it. Give every run its sound, in the order of the rows",
        row_, count, sounds_.placeholder, sounds_.lengths.size());
    const int64_t frames = sounds_.lengths[sounds_.next], tokens = audio_->rows(frames);
    check<DataError>(
        count == tokens,
        "row {} has a run of {} placeholders (id {}), but sound {} has {} frames, which are {} tokens. Give"
        " ids and features that were made together",
        row_, count, sounds_.placeholder, sounds_.next, frames, tokens);
    const auto at = static_cast<int64_t>(sounds_.next++);
    frames_.push_back(sounds_.features[at].narrow(1, 0, frames).t());
    lengths_.push_back(frames);
    const int64_t first = end_.sound_outputs;
    ++end_.sounds;
    end_.frames += frames;
    end_.sound_outputs += tokens;
    return first;
  }

  // Takes the medium, or the time patch of one, for a run of `count` placeholders. `output` becomes its output row.
  TokenSegment take(MediaList& list, int64_t count, int64_t& output) {
    check<DataError>(list.next < list.grids.size(),
                     "row {} has a run of {} {} placeholders (id {}), but {} has only {}, which are all used before it."
                     " Give every run its {}, in the order of the rows",
                     row_, count, list.name, list.placeholder, list.grids_name, list.grids.size(), list.name);
    const ImageGrid& grid = list.grids[list.next];
    const bool in_blocks =
        list.kind == TokenSegment::Kind::kVideo && settings_.time == layout::TimeRule::kBlocks && grid.time > 1;
    const TokenSegment segment{.kind = list.kind,
                               .frames = in_blocks ? 1 : grid.time,
                               .rows = grid.height,
                               .columns = grid.width,
                               .seconds = list.seconds[list.next]};
    const int64_t tokens = layout::tokens_in(segment, settings_);
    check<DataError>(count == tokens,
                     "row {} has a run of {} placeholders (id {}), but {} {} has {} x {} x {} patches in {}, which are"
                     " {} tokens{}. Give ids and pixels that were made together; a run is one {}",
                     row_, count, list.placeholder, list.name, list.next, grid.time, grid.height, grid.width,
                     list.grids_name, tokens, in_blocks ? " per time patch" : "",
                     in_blocks ? "time patch of a video" : list.name);
    if (list.frames == 0) begin_medium(list, grid);
    output = list.output + list.frames * tokens;
    if (++list.frames == grid.time || !in_blocks) {
      list.frames = 0;
      ++list.next;
    }
    return segment;
  }

  // Appends a medium's pixels and grid to those of the batch.
  void begin_medium(MediaList& list, const ImageGrid& grid) {
    list.output = end_.outputs;
    parts_.push_back(list.pixels.narrow(0, list.patch, grid.patches()));
    list.patch += grid.patches();
    grids_.insert(grids_.end(), {grid.time, grid.height, grid.width});
    ++end_.media;
    end_.patches += grid.patches();
    end_.outputs += grid.patches() / (settings_.merge * settings_.merge);
  }

  const layout::PositionSettings settings_;
  const std::optional<nn::AudioShape> audio_;
  MediaList images_, videos_;
  SoundList sounds_;
  int64_t row_ = 0;
  MediaBatch::Begin end_;
  std::vector<at::Tensor> parts_;
  std::vector<int64_t> grids_;
  std::vector<at::Tensor> frames_;
  std::vector<int64_t> lengths_;
  MediaBatch batch_;
};

// Without media, a placeholder would pass for text.
void check_no_placeholders(const at::Tensor& ids, const at::Tensor& mask, const model::MediaTokens& tokens) {
  for (const int64_t placeholder : {tokens.image, tokens.video, tokens.audio}) {
    if (placeholder < 0) continue;
    const at::Tensor found = mask.defined() ? ids.eq(placeholder).logical_and(mask.ne(0)) : ids.eq(placeholder);
    if (!found.any().item<bool>()) continue;
    const auto row = found.any(1).to(at::kInt).argmax().item<int64_t>();
    throw DataError(fmt::format(
        "row {} has {} placeholders of media (id {}), but there are no media. Give their pixels and grids, or ids"
        " without placeholders",
        row, found[row].sum().item<int64_t>(), placeholder));
  }
}

}  // namespace

MediaBatch MediaBatch::rows(int64_t first, int64_t count) const {
  if (!coordinates.defined()) return {};
  MediaBatch part{.coordinates = coordinates.narrow(1, first, count)};
  if (begins.empty()) return part;
  const Begin from = begins[static_cast<size_t>(first)], to = begins[static_cast<size_t>(first + count)];
  for (int64_t row = first; row <= first + count; ++row) {
    const Begin& begin = begins[static_cast<size_t>(row)];
    part.begins.push_back({begin.media - from.media, begin.patches - from.patches, begin.outputs - from.outputs,
                           begin.sounds - from.sounds, begin.frames - from.frames,
                           begin.sound_outputs - from.sound_outputs});
  }
  const at::Tensor numbers = visual_rows.narrow(0, first, count);
  part.visual_rows = at::where(numbers < 0, numbers, numbers - from.outputs);
  if (audio_rows.defined()) {
    const at::Tensor heard = audio_rows.narrow(0, first, count);
    part.audio_rows = at::where(heard < 0, heard, heard - from.sound_outputs);
    if (to.sounds > from.sounds) {
      part.audio_features = audio_features.narrow(0, from.frames, to.frames - from.frames);
      part.audio_lengths = audio_lengths.narrow(0, from.sounds, to.sounds - from.sounds);
    }
  }
  if (to.media == from.media) return part;
  part.pixels = pixels.narrow(0, from.patches, to.patches - from.patches);
  part.grids = grids.narrow(0, from.media, to.media - from.media);
  return part;
}

MediaBatch place_media(const at::Tensor& ids, const at::Tensor& mask, const MediaInput& media,
                       const model::ModelConfig& config) {
  MediaBatch batch;
  if (media.any() || media.pixels.defined() || media.video_pixels.defined() || media.sound_lengths.defined()) {
    const bool hears = media.hears() || media.sound_lengths.defined();
    check<ConfigError>(!hears || (config.media && config.audio),
                       "the input has sounds, but {} models have no audio tower here; use a model that hears, or leave"
                       " out input_features",
                       config.family);
    check<ConfigError>((config.media && config.vision) || (hears && !media.sees()),
                       "the input has images or videos, but {} models have no vision tower here; use a model that sees,"
                       " or leave out pixel_values and image_grid_thw",
                       config.family);
    batch = Placer(media, config).place(ids, mask);
  } else if (config.media) {
    check_no_placeholders(ids, mask, *config.media);
  }
  if (!media.coordinates.defined()) return batch;
  const at::Tensor& given = media.coordinates;
  check<DataError>(given.dim() == 3 && given.size(0) == 3 && given[0].sizes() == ids.sizes() &&
                       (given.scalar_type() == at::kLong || given.scalar_type() == at::kFloat),
                   "position_ids must be int64 or fp32 of shape [3, {}, {}]: time, height and width of every token",
                   ids.size(0), ids.size(1));
  check<ConfigError>(config.rope && !config.rope->sections.empty(),
                     "position_ids has three coordinates per token, but {} models turn by one position; leave it out",
                     config.family);
  batch.coordinates = given;
  return batch;
}

}  // namespace megalith::inference
