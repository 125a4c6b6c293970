#include "megalith/media/image_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"
#include "megalith/media/processor_config_internal.h"
#include "megalith/media/resample.h"

namespace megalith::media {

namespace {

constexpr int64_t kLeastSide = 28;       // LLaMA-Factory's for all Qwen families, whatever the patch size
constexpr double kLargestRatio = 200.0;  // between the sides
constexpr int64_t kCutRatio = 180;       // to which LLaMA-Factory cuts a larger one

bool too_long(double side, double other) { return side / other > kLargestRatio; }

// LLaMA-Factory's first two steps; the third one, for Qwen families, comes after the conversion to RGB.
ImageSize into_range(ImageSize size, const ImageProcessorSettings& settings, const std::string& name) {
  const auto scale_to = [&](int64_t pixels) {
    const double factor = std::sqrt(static_cast<double>(pixels) / static_cast<double>(size.width * size.height));
    const ImageSize scaled{static_cast<int64_t>(static_cast<double>(size.width) * factor),
                           static_cast<int64_t>(static_cast<double>(size.height) * factor)};
    if (scaled.width < 1 || scaled.height < 1)
      throw DataError(
          fmt::format("{}: {} x {} pixels scaled to {} pixels would leave a side of 0. Cut the image, or set "
                      "{}_max_pixels to {} or more",
                      name, size.width, size.height, pixels, settings.limits_name, size.width * size.height));
    size = scaled;
  };
  if (size.width * size.height > settings.image_max_pixels) scale_to(settings.image_max_pixels);
  if (size.width * size.height < settings.image_min_pixels) scale_to(settings.image_min_pixels);
  return size;
}

// Each further size that LLaMA-Factory's Qwen step resizes to, in order.
std::vector<ImageSize> qwen_sizes(ImageSize size) {
  std::vector<ImageSize> sizes;
  const auto set = [&](ImageSize next) { sizes.push_back(size = next); };
  if (std::min(size.width, size.height) < kLeastSide)
    set({std::max(size.width, kLeastSide), std::max(size.height, kLeastSide)});
  if (too_long(static_cast<double>(size.width), static_cast<double>(size.height)))
    set({size.height * kCutRatio, size.height});
  if (too_long(static_cast<double>(size.height), static_cast<double>(size.width)))
    set({size.width, size.width * kCutRatio});
  return sizes;
}

std::array<double, 3> three_numbers(const io::JsonFields& fields, const char* key,
                                    const std::array<double, 3>& absent) {
  const auto values = fields.optional<std::vector<double>>(key);
  if (!values) return absent;
  if (values->size() != 3) fields.refuse(key, "be a list of three numbers");
  return {(*values)[0], (*values)[1], (*values)[2]};
}

// A switch that would change the pixels in a way that is not done here.
void require_true(const io::JsonFields& fields, const char* key) {
  if (!fields.optional<bool>(key).value_or(true)) fields.refuse(key, "be true: images are always prepared in this way");
}

}  // namespace

ImageProcessorSettings read_model_part(const io::JsonFields& fields, ImageProcessorSettings settings) {
  for (const char* key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) require_true(fields, key);
  if (const auto factor = fields.optional<double>("rescale_factor"); factor && std::abs(*factor * 255 - 1) > 1e-6)
    fields.refuse("rescale_factor", "be 1/255");
  if (const auto resample = fields.optional<int64_t>("resample"); resample && *resample != 3)
    fields.refuse("resample", "be 3 (bicubic)");
  const auto read = [&](const char* key, int64_t& value) {
    if (const auto given = fields.optional_positive<int64_t>(key)) value = *given;
  };
  read("patch_size", settings.patch_size);
  read("temporal_patch_size", settings.temporal_patch_size);
  read("merge_size", settings.merge_size);
  // `size` is newer; where both occur, transformers lets min_pixels and max_pixels win.
  if (const auto size = fields.optional_object("size")) {
    if (const auto least = size->optional_positive<int64_t>("shortest_edge")) settings.min_pixels = *least;
    if (const auto most = size->optional_positive<int64_t>("longest_edge")) settings.max_pixels = *most;
  }
  read("min_pixels", settings.min_pixels);
  read("max_pixels", settings.max_pixels);
  settings.mean = three_numbers(fields, "image_mean", settings.mean);
  settings.std = three_numbers(fields, "image_std", settings.std);
  if (std::ranges::any_of(settings.std, [](double value) { return value <= 0; }))
    fields.refuse("image_std", "be three positive numbers");
  return settings;
}

ImageProcessorSettings read_image_processor(const std::filesystem::path& model_folder) {
  const auto own = model_folder / "preprocessor_config.json";
  const auto shared = model_folder / "processor_config.json";
  if (std::filesystem::exists(own)) return read_model_part(io::read_json_file(own).fields(), {});
  if (std::filesystem::exists(shared)) {
    const io::JsonFile file = io::read_json_file(shared);
    if (const auto image = file.fields().optional_object("image_processor")) return read_model_part(*image, {});
  }
  throw DataError(
      fmt::format("{} has neither preprocessor_config.json nor an \"image_processor\" in "
                  "processor_config.json, which say how images are prepared; copy the file from the model's "
                  "original folder",
                  model_folder.string()));
}

ImageProcessor::ImageProcessor(const ImageProcessorSettings& settings) : settings_(settings) {
  check<ConfigError>(
      settings_.image_min_pixels > 0 && settings_.image_min_pixels <= settings_.image_max_pixels,
      "image_min_pixels is {} and image_max_pixels {}; the first must be positive and not larger than the "
      "second",
      settings_.image_min_pixels, settings_.image_max_pixels);
  check<ConfigError>(
      settings_.min_pixels > 0 && settings_.min_pixels <= settings_.max_pixels,
      "preprocessor_config.json allows {} to {} pixels; the first must be positive and not larger than the "
      "second",
      settings_.min_pixels, settings_.max_pixels);
  for (size_t c = 0; c < 3; ++c) {
    const auto mean = static_cast<float>(settings_.mean[c] * 255);
    const auto std = static_cast<float>(settings_.std[c] * 255);
    for (size_t byte = 0; byte < 256; ++byte) normalised_[c][byte] = (static_cast<float>(byte) - mean) / std;
  }
}

ImageSize ImageProcessor::pre_resized(ImageSize size, const std::string& name) const {
  const ImageSize in_range = into_range(size, settings_, name);
  const std::vector<ImageSize> sizes = qwen_sizes(in_range);
  return sizes.empty() ? in_range : sizes.back();
}

ImageSize ImageProcessor::model_size(ImageSize size, const std::string& name) const {
  const auto width = static_cast<double>(size.width);
  const auto height = static_cast<double>(size.height);
  if (too_long(std::max(width, height), std::min(width, height)))
    throw DataError(
        fmt::format("{}: {} x {} pixels; one side may be at most 200 times the other", name, size.width, size.height));
  const auto unit = static_cast<double>(settings_.patch_size * settings_.merge_size);
  // Halves go to the even neighbor, as in Python.
  double new_width = std::nearbyint(width / unit) * unit;
  double new_height = std::nearbyint(height / unit) * unit;
  if (new_width * new_height > static_cast<double>(settings_.max_pixels)) {
    const double beta = std::sqrt(height * width / static_cast<double>(settings_.max_pixels));
    new_width = std::max(unit, std::floor(width / beta / unit) * unit);
    new_height = std::max(unit, std::floor(height / beta / unit) * unit);
  } else if (new_width * new_height < static_cast<double>(settings_.min_pixels)) {
    const double beta = std::sqrt(static_cast<double>(settings_.min_pixels) / (height * width));
    new_width = std::ceil(width * beta / unit) * unit;
    new_height = std::ceil(height * beta / unit) * unit;
  }
  return {static_cast<int64_t>(new_width), static_cast<int64_t>(new_height)};
}

PatchGrid ImageProcessor::grid(ImageSize size, const std::string& name) const {
  const ImageSize final_size = model_size(pre_resized(size, name), name);
  return {1, final_size.height / settings_.patch_size, final_size.width / settings_.patch_size};
}

int64_t ImageProcessor::tokens(const PatchGrid& grid) const {
  return patches(grid) / (settings_.merge_size * settings_.merge_size);
}

int64_t ImageProcessor::row_width() const {
  return 3 * settings_.temporal_patch_size * settings_.patch_size * settings_.patch_size;
}

Image ImageProcessor::pre_resize(Image image, const std::string& name) const {
  const ImageSize in_range = into_range({image.width, image.height}, settings_, name);
  if (in_range != ImageSize{image.width, image.height})
    image = resize(image, in_range.width, in_range.height, Resampler::kPillow);
  Image rgb = to_rgb(std::move(image));
  for (const ImageSize& size : qwen_sizes(in_range)) rgb = resize(rgb, size.width, size.height, Resampler::kPillow);
  return on_white(std::move(rgb));
}

void ImageProcessor::patch_rows(const Image& rgb, float* rows, const std::string& name) const {
  const std::array<const Image*, 1> frame{&rgb};
  patch_rows(frame, model_size({rgb.width, rgb.height}, name), rows);
}

void ImageProcessor::patch_rows(std::span<const Image* const> frames, ImageSize size, float* rows) const {
  std::vector<Image> resized;
  std::vector<const Image*> same_size;
  resized.reserve(frames.size());
  for (const Image* frame : frames) {
    check(frame->mode == ImageMode::kRgb, "patch_rows takes RGB images");
    const bool fits = size == ImageSize{frame->width, frame->height};
    if (!fits) resized.push_back(resize(*frame, size.width, size.height, Resampler::kAten));
    same_size.push_back(fits ? frame : &resized.back());
  }
  write_rows(same_size, rows);
}

void ImageProcessor::write_rows(std::span<const Image* const> resized, float* rows) const {
  const auto given = std::ssize(resized);
  check(given == 1 || given == settings_.temporal_patch_size, "{} frames for a time patch of {}", given,
        settings_.temporal_patch_size);
  const int64_t patch = settings_.patch_size;
  const int64_t merge = settings_.merge_size;
  const int64_t area = patch * patch;
  const int64_t channel = settings_.temporal_patch_size * area;
  const float* red = normalised_[0].data();
  const float* green = normalised_[1].data();
  const float* blue = normalised_[2].data();
  const Image& first = *resized.front();
  const auto write_patch = [&](int64_t top, int64_t left, float* row) {
    // Each given frame of each channel, pixel row by pixel row; a single one is copied to the other frames.
    for (int64_t t = 0; t < given; ++t) {
      const Image& frame = *resized[static_cast<size_t>(t)];
      float* to = row + t * area;
      for (int64_t y = 0; y < patch; ++y, to += patch) {
        const uint8_t* pixel = frame.row(top + y) + left * 3;
        for (int64_t x = 0; x < patch; ++x, pixel += 3) {
          to[x] = red[pixel[0]];
          to[channel + x] = green[pixel[1]];
          to[2 * channel + x] = blue[pixel[2]];
        }
      }
    }
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t t = given; t < settings_.temporal_patch_size; ++t)
        std::memcpy(row + c * channel + t * area, row + c * channel, static_cast<size_t>(area) * sizeof(float));
  };
  float* row = rows;
  for (int64_t y = 0; y < first.height; y += patch * merge)
    for (int64_t x = 0; x < first.width; x += patch * merge)
      for (int64_t dy = 0; dy < merge; ++dy)
        for (int64_t dx = 0; dx < merge; ++dx, row += row_width()) write_patch(y + dy * patch, x + dx * patch, row);
}

}  // namespace megalith::media
