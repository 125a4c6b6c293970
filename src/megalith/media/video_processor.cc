// The sizes follow transformers' smart_resize of the two families of video processors, and LLaMA-Factory's sampling of
// frames, operation by operation: counts of tokens depend on every rounding.
#include "megalith/media/video_processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"
#include "megalith/media/processor_config_internal.h"

namespace megalith::media {

namespace {

constexpr double kLargestFrameRatio = 200.0;  // between the sides

ImageProcessorSettings frame_settings(const VideoProcessorSettings& settings) {
  check<ConfigError>(settings.video_min_pixels > 0 && settings.video_min_pixels <= settings.video_max_pixels,
                     "video_min_pixels is {} and video_max_pixels {}; the first must be positive and not larger than "
                     "the second",
                     settings.video_min_pixels, settings.video_max_pixels);
  check<ConfigError>(settings.model.min_pixels > 0 && settings.model.min_pixels <= settings.model.max_pixels,
                     "video_preprocessor_config.json allows {} to {} pixels; the first must be positive and not larger "
                     "than the second",
                     settings.model.min_pixels, settings.model.max_pixels);
  ImageProcessorSettings frames = settings.model;
  frames.image_max_pixels = settings.video_max_pixels;
  frames.image_min_pixels = settings.video_min_pixels;
  frames.limits_name = "video";
  return frames;
}

// The size of Qwen3's frames, whose limits hold for all of them together.
ImageSize size_of_all(int64_t frames, ImageSize size, const ImageProcessorSettings& model, const std::string& name) {
  const auto unit = static_cast<double>(model.patch_size * model.merge_size);
  auto width = static_cast<double>(size.width);
  auto height = static_cast<double>(size.height);
  if (height < unit || width < unit) {
    const double scale = std::max(unit / height, unit / width);
    height = std::floor(height * scale);
    width = std::floor(width * scale);
  }
  if (std::max(width, height) / std::min(width, height) > kLargestFrameRatio)
    throw DataError(fmt::format("{}: frames of {} x {} pixels; one side may be at most 200 times the other", name,
                                size.width, size.height));
  // Halves go to the even neighbor, as in Python.
  const auto nearest = [](double value, double multiple) { return std::nearbyint(value / multiple) * multiple; };
  double new_width = nearest(width, unit);
  double new_height = nearest(height, unit);
  const auto count = static_cast<double>(frames);
  const double pixels = nearest(count, static_cast<double>(model.temporal_patch_size)) * new_height * new_width;
  if (pixels > static_cast<double>(model.max_pixels)) {
    const double beta = std::sqrt(count * height * width / static_cast<double>(model.max_pixels));
    new_width = std::max(unit, std::floor(width / beta / unit) * unit);
    new_height = std::max(unit, std::floor(height / beta / unit) * unit);
  } else if (pixels < static_cast<double>(model.min_pixels)) {
    const double beta = std::sqrt(static_cast<double>(model.min_pixels) / (count * height * width));
    new_width = std::ceil(width * beta / unit) * unit;
    new_height = std::ceil(height * beta / unit) * unit;
  }
  return {static_cast<int64_t>(new_width), static_cast<int64_t>(new_height)};
}

// transformers' own defaults for what a file leaves out.
ImageProcessorSettings defaults(bool limits_all_frames) {
  ImageProcessorSettings model;
  model.min_pixels = 128 * 28 * 28;
  model.max_pixels = 768 * 28 * 28;
  if (!limits_all_frames) return model;
  model.patch_size = 16;
  model.min_pixels = 128 * 32 * 32;
  model.max_pixels = 768 * 32 * 32;
  model.mean = {0.5, 0.5, 0.5};
  model.std = {0.5, 0.5, 0.5};
  return model;
}

}  // namespace

VideoProcessorSettings read_video_processor(const std::filesystem::path& model_folder, bool limits_all_frames) {
  VideoProcessorSettings settings{.limits_all_frames = limits_all_frames};
  const auto own = model_folder / "video_preprocessor_config.json";
  const auto shared = model_folder / "processor_config.json";
  if (std::filesystem::exists(own)) {
    settings.model = read_model_part(io::read_json_file(own).fields(), defaults(limits_all_frames));
    return settings;
  }
  if (std::filesystem::exists(shared)) {
    const io::JsonFile file = io::read_json_file(shared);
    if (const auto video = file.fields().optional_object("video_processor")) {
      settings.model = read_model_part(*video, defaults(limits_all_frames));
      return settings;
    }
  }
  settings.model = read_image_processor(model_folder);
  return settings;
}

std::vector<int64_t> sampled_frames(int64_t frames, double seconds, double video_fps, int64_t video_maxlen) {
  check(frames > 0 && video_maxlen > 0, "{} frames of at most {}", frames, video_maxlen);
  int64_t count = std::min(frames, video_maxlen);
  if (seconds > 0) count = std::min(count, std::max<int64_t>(1, static_cast<int64_t>(std::floor(seconds * video_fps))));
  std::vector<int64_t> numbers;
  // numpy.linspace: the step is divided first, and the last value is exact.
  const double step = count > 1 ? static_cast<double>(frames - 1) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<int64_t>(static_cast<double>(i) * step));
  if (count > 1) numbers.back() = frames - 1;
  return numbers;
}

VideoProcessor::VideoProcessor(const VideoProcessorSettings& settings)
    : settings_(settings), frames_(frame_settings(settings)) {}

ImageSize VideoProcessor::model_size(int64_t frames, ImageSize size, const std::string& name) const {
  return settings_.limits_all_frames ? size_of_all(frames, size, settings_.model, name)
                                     : frames_.model_size(size, name);
}

PatchGrid VideoProcessor::grid(int64_t frames, ImageSize size, const std::string& name) const {
  check(frames > 0, "a video without frames");
  const int64_t patches = (frames + frames_per_patch() - 1) / frames_per_patch();
  const ImageSize last = model_size(patches * frames_per_patch(), frames_.pre_resized(size, name), name);
  return {patches, last.height / settings_.model.patch_size, last.width / settings_.model.patch_size};
}

void VideoProcessor::patch_rows(std::span<const Image> frames, const PatchGrid& grid, float* rows) const {
  check(!frames.empty() && std::ssize(frames) <= frames_per_patch(), "{} frames for a time patch of {}", frames.size(),
        frames_per_patch());
  std::vector<const Image*> all;
  for (int64_t i = 0; i < frames_per_patch(); ++i)
    all.push_back(&frames[static_cast<size_t>(std::min<int64_t>(i, std::ssize(frames) - 1))]);
  frames_.patch_rows(all, {grid.w * settings_.model.patch_size, grid.h * settings_.model.patch_size}, rows);
}

}  // namespace megalith::media
