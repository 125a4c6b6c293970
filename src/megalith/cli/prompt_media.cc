// A text gets one placeholder per medium first, and its ids get the others: the texts of a medium are special tokens,
// which a tokenizer reads alike wherever they stand, and a chat template may write a placeholder by itself.
#include "megalith/cli/prompt_media.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/io/mapped_file.h"
#include "megalith/media/decode.h"

namespace megalith::cli {

namespace {

using nlohmann::ordered_json;

// How media of one kind stand in texts.
struct MediaKind {
  const char* name;
  std::string_view marker;
  std::string text;  // with one placeholder
};

MediaKind image_kind() {
  const data::MediaSettings tokens;
  return {"image", data::kImageMarker, tokens.start + tokens.image_pad + tokens.end};
}

MediaKind sound_kind() {
  const data::MediaSettings tokens;
  return {"sound", data::kSoundMarker, tokens.sound_start + tokens.sound_pad + tokens.sound_end};
}

size_t count_markers(const std::string& text, std::string_view marker) {
  size_t count = 0;
  for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, at + marker.size())) ++count;
  return count;
}

std::string replace_markers(const std::string& text, std::string_view marker, const std::string& by) {
  std::string out;
  size_t from = 0;
  for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, from)) {
    out.append(text, from, at - from).append(by);
    from = at + marker.size();
  }
  return out.append(text, from);
}

// Returns the texts in which media may stand: the prompt, or the contents of its messages. Contents in parts, which
// the chat template reads, are left out.
std::vector<std::string*> texts_of(ordered_json& given) {
  if (given.is_string()) return {given.get_ptr<std::string*>()};
  std::vector<std::string*> texts;
  for (ordered_json& message : given)
    if (message.is_object() && message.contains("content") && message["content"].is_string())
      texts.push_back(message["content"].get_ptr<std::string*>());
  return texts;
}

std::string* first_text_of_user(ordered_json& given) {
  if (given.is_string()) return given.get_ptr<std::string*>();
  for (ordered_json& message : given)
    if (message.is_object() && message.value("role", "") == "user" && message["content"].is_string())
      return message["content"].get_ptr<std::string*>();
  return nullptr;
}

bool has_parts(const ordered_json& given) {
  for (const ordered_json& message : given)
    if (message.is_object() && message.contains("content") && message["content"].is_array()) return true;
  return false;
}

void mark_kind(ordered_json& given, size_t count, const MediaKind& kind) {
  if (count == 0) return;
  size_t markers = 0;
  const std::vector<std::string*> texts = texts_of(given);
  for (const std::string* part : texts) markers += count_markers(*part, kind.marker);
  check<DataError>(markers == 0 || markers == count,
                   "the prompt has {} {} markers for {} {}s; write one for each, or none to put the {}s first", markers,
                   kind.marker, count, kind.name, kind.name);
  if (markers > 0) {
    for (std::string* part : texts) *part = replace_markers(*part, kind.marker, kind.text);
    return;
  }
  if (!given.is_string() && has_parts(given)) return;  // the template writes the placeholders
  std::string* const first = first_text_of_user(given);
  check<DataError>(first != nullptr, "the prompt has {} {}s, but no text of a user to put them before", count,
                   kind.name);
  for (size_t i = 0; i < count; ++i) first->insert(0, kind.text);
}

media::ImageProcessor image_processor(const nn::VisionShape& tower, const std::filesystem::path& folder) {
  const media::ImageProcessorSettings settings = media::read_image_processor(folder);
  check<DataError>(settings.patch_size == tower.patch && settings.merge_size == tower.merge &&
                       settings.temporal_patch_size == tower.time_patch,
                   "{}: the image processor cuts patches of {} pixels and {} frames and merges {}; the tower in"
                   " config.json takes {}, {} and {}",
                   folder.string(), settings.patch_size, settings.temporal_patch_size, settings.merge_size, tower.patch,
                   tower.time_patch, tower.merge);
  return media::ImageProcessor(settings);
}

media::SoundProcessor sound_processor(const nn::AudioShape& tower, const std::filesystem::path& folder) {
  const media::SoundProcessorSettings settings{.bins = tower.mel_bins, .chunk = tower.chunk};
  media::check_feature_extractor(folder, settings);
  return media::SoundProcessor(settings);
}

// The bytes of a file are only mapped as long as `read` runs.
template <typename Read>
auto with_bytes(const std::string& name, const char* kind, const Read& read) {
  check<DataError>(std::filesystem::is_regular_file(name), "the {} {} does not exist", kind, name);
  const io::MappedFile file{std::filesystem::path(name)};
  return read(file.text(0, file.size()));
}

// Gives each run of one placeholder the length of its medium. Returns the number of runs.
size_t expand_runs(std::vector<int64_t>& ids, int64_t placeholder, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> expanded;
  size_t runs = 0;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[i] == placeholder && ids[end] == placeholder) ++end;
    size_t count = end - i;
    if (ids[i] == placeholder) {
      if (count == 1 && runs < lengths.size()) count = static_cast<size_t>(lengths[runs]);
      ++runs;
    }
    expanded.insert(expanded.end(), count, ids[i]);
    i = end;
  }
  ids = std::move(expanded);
  return runs;
}

void expand_kind(std::vector<int64_t>& ids, int64_t placeholder, const std::vector<int64_t>& lengths,
                 const char* kind) {
  if (lengths.empty()) return;
  const size_t runs = expand_runs(ids, placeholder, lengths);
  check<DataError>(runs == lengths.size(),
                   "the prompt has {} runs of {} placeholders (id {}) for {} {}s; each {} needs one", runs, kind,
                   placeholder, lengths.size(), kind, kind);
}

}  // namespace

void mark_media(ordered_json& given, const PromptFiles& files) {
  // Each kind goes to the front: the one that is marked last stands first.
  mark_kind(given, files.sounds.size(), sound_kind());
  mark_kind(given, files.images.size(), image_kind());
}

PromptMedia::PromptMedia(const model::ModelConfig& config, std::filesystem::path folder)
    : config_(config), folder_(std::move(folder)) {}

std::vector<int64_t> PromptMedia::read_images(const std::vector<std::string>& files, inference::MediaInput& to) {
  if (files.empty()) return {};
  check<ConfigError>(config_.vision && config_.media && config_.media->image >= 0,
                     "{} models take no images; use a model that sees, or leave out the images", config_.family);
  if (!images_) images_.emplace(image_processor(*config_.vision, folder_));
  std::vector<at::Tensor> pixels;
  std::vector<int64_t> grids, tokens;
  for (const std::string& name : files) {
    media::Image image =
        with_bytes(name, "image", [&](std::string_view bytes) { return media::decode_image(bytes, name); });
    const media::PatchGrid grid = images_->grid({image.width, image.height}, name);
    pixels.push_back(at::empty({images_->patches(grid), images_->row_width()}, at::kFloat));
    images_->patch_rows(images_->pre_resize(std::move(image), name), pixels.back().mutable_data_ptr<float>(), name);
    grids.insert(grids.end(), {grid.t, grid.h, grid.w});
    tokens.push_back(images_->tokens(grid));
  }
  to.pixels = at::cat(pixels);
  to.grids = at::tensor(grids, at::kLong).view({-1, 3});
  return tokens;
}

std::vector<int64_t> PromptMedia::read_sounds(const std::vector<std::string>& files, inference::MediaInput& to) {
  if (files.empty()) return {};
  check<ConfigError>(config_.audio && config_.media && config_.media->audio >= 0,
                     "{} models take no sounds; use a model that hears (qwen3_omni_moe), or leave out the sounds",
                     config_.family);
  if (!sounds_) sounds_.emplace(sound_processor(*config_.audio, folder_));
  std::vector<at::Tensor> spectrograms;  // [m, frames]
  std::vector<int64_t> lengths, tokens;
  for (const std::string& name : files) {
    media::Sound sound =
        with_bytes(name, "sound", [&](std::string_view bytes) { return media::decode_sound(bytes, name); });
    lengths.push_back(sounds_->frames({sound.rate, 1, std::ssize(sound.samples)}, name));
    const at::Tensor frames = at::empty({lengths.back(), sounds_->row_width()}, at::kFloat);
    sounds_->write_frames(std::move(sound), frames.mutable_data_ptr<float>());
    spectrograms.push_back(frames.t());
    tokens.push_back(sounds_->tokens(lengths.back()));
  }
  const int64_t longest = std::ranges::max(lengths);
  for (at::Tensor& one : spectrograms) one = at::constant_pad_nd(one, {0, longest - one.size(1)});
  to.sounds = at::stack(spectrograms);
  to.sound_lengths = at::tensor(lengths, at::kLong);
  return tokens;
}

inference::MediaInput PromptMedia::read(const PromptFiles& files, std::vector<int64_t>& ids) {
  const model::MediaTokens placeholders = config_.media.value_or(model::MediaTokens{});
  inference::MediaInput media;
  expand_kind(ids, placeholders.image, read_images(files.images, media), "image");
  expand_kind(ids, placeholders.audio, read_sounds(files.sounds, media), "sound");
  return media;
}

}  // namespace megalith::cli
