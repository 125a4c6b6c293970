// A text gets one placeholder per image first, and its ids get the others: the texts of an image are special tokens,
// which a tokenizer reads alike wherever they stand, and a chat template may write a placeholder by itself.
#include "megalith/cli/prompt_images.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/io/mapped_file.h"
#include "megalith/media/decode.h"

namespace megalith::cli {

namespace {

using nlohmann::ordered_json;

size_t count_markers(const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(data::kImageMarker); at != std::string::npos;
       at = text.find(data::kImageMarker, at + data::kImageMarker.size()))
    ++count;
  return count;
}

std::string replace_markers(const std::string& text, const std::string& by) {
  std::string out;
  size_t from = 0;
  for (size_t at = text.find(data::kImageMarker); at != std::string::npos; at = text.find(data::kImageMarker, from)) {
    out.append(text, from, at - from).append(by);
    from = at + data::kImageMarker.size();
  }
  return out.append(text, from);
}

// Returns the texts in which images may stand: the prompt, or the contents of its messages. Contents in parts, which
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

media::ImageProcessorSettings processor_of(const model::ModelConfig& config, const std::filesystem::path& folder) {
  check<ConfigError>(config.vision && config.media && config.media->image >= 0,
                     "{} models take no images; use a model that sees, or leave out the images", config.family);
  const media::ImageProcessorSettings settings = media::read_image_processor(folder);
  const nn::VisionShape& tower = *config.vision;
  check<DataError>(settings.patch_size == tower.patch && settings.merge_size == tower.merge &&
                       settings.temporal_patch_size == tower.time_patch,
                   "{}: the image processor cuts patches of {} pixels and {} frames and merges {}; the tower in"
                   " config.json takes {}, {} and {}",
                   folder.string(), settings.patch_size, settings.temporal_patch_size, settings.merge_size, tower.patch,
                   tower.time_patch, tower.merge);
  return settings;
}

}  // namespace

void mark_images(ordered_json& given, size_t images) {
  if (images == 0) return;
  const data::MediaSettings tokens;
  const std::string text = tokens.start + tokens.image_pad + tokens.end;
  size_t markers = 0;
  const std::vector<std::string*> texts = texts_of(given);
  for (const std::string* part : texts) markers += count_markers(*part);
  check<DataError>(markers == 0 || markers == images,
                   "the prompt has {} {} markers for {} images; write one for each, or none to put the images first",
                   markers, data::kImageMarker, images);
  if (markers > 0) {
    for (std::string* part : texts) *part = replace_markers(*part, text);
    return;
  }
  if (!given.is_string() && has_parts(given)) return;  // the template writes the placeholders
  std::string* const first = first_text_of_user(given);
  check<DataError>(first != nullptr, "the prompt has {} images, but no text of a user to put them before", images);
  for (size_t i = 0; i < images; ++i) first->insert(0, text);
}

PromptImages::PromptImages(const model::ModelConfig& config, const std::filesystem::path& folder)
    : placeholder_(config.media ? config.media->image : -1), processor_(processor_of(config, folder)) {}

inference::MediaInput PromptImages::read(const std::vector<std::string>& files, std::vector<int64_t>& ids) const {
  std::vector<at::Tensor> pixels;
  std::vector<int64_t> grids, tokens;
  for (const std::string& name : files) {
    check<DataError>(std::filesystem::is_regular_file(name), "the image {} does not exist", name);
    const io::MappedFile file{std::filesystem::path(name)};
    media::Image image = media::decode_image(file.text(0, file.size()), name);
    const media::PatchGrid grid = processor_.grid({image.width, image.height}, name);
    pixels.push_back(at::empty({processor_.patches(grid), processor_.row_width()}, at::kFloat));
    processor_.patch_rows(processor_.pre_resize(std::move(image), name), pixels.back().mutable_data_ptr<float>(), name);
    grids.insert(grids.end(), {grid.t, grid.h, grid.w});
    tokens.push_back(processor_.tokens(grid));
  }
  std::vector<int64_t> expanded;
  size_t runs = 0;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[i] == placeholder_ && ids[end] == placeholder_) ++end;
    size_t count = end - i;
    if (ids[i] == placeholder_) {
      if (count == 1 && runs < tokens.size()) count = static_cast<size_t>(tokens[runs]);
      ++runs;
    }
    expanded.insert(expanded.end(), count, ids[i]);
    i = end;
  }
  check<DataError>(runs == files.size(),
                   "the prompt has {} runs of image placeholders (id {}) for {} images; each image needs one", runs,
                   placeholder_, files.size());
  ids = std::move(expanded);
  return {.pixels = at::cat(pixels), .grids = at::tensor(grids, at::kLong).view({-1, 3})};
}

}  // namespace megalith::cli
