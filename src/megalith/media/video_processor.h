// VideoProcessor: from the frames of a video to the rows of patches that a vision tower takes.
//
// As for images, LLaMA-Factory's step comes first (the options video_max_pixels and video_min_pixels), then the model's
// own, which has one size for all frames. A patch holds temporal_patch_size frames; the last frame is repeated where
// their number is not a multiple.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "megalith/media/image_processor.h"

namespace megalith::media {

struct VideoProcessorSettings {
  // The model's part, from video_preprocessor_config.json. Its members image_max_pixels and image_min_pixels are not
  // used.
  ImageProcessorSettings model;
  // Whether min_pixels and max_pixels are those of all frames together, as for Qwen3-VL and Qwen3.5, or of each frame,
  // as for Qwen2-VL and Qwen2.5-VL.
  bool limits_all_frames = false;
  // The part of the data, which comes first.
  int64_t video_max_pixels = 256 * 256;
  int64_t video_min_pixels = 16 * 16;
};

// Reads the model's part from video_preprocessor_config.json, from "video_processor" in processor_config.json, or,
// where a folder has neither, as that of images (read_image_processor). `limits_all_frames` follows from the model's
// family, and decides the defaults. Throws DataError like read_image_processor.
VideoProcessorSettings read_video_processor(const std::filesystem::path& model_folder, bool limits_all_frames);

// Returns which of a stream's frames are taken, as LLaMA-Factory does: `video_fps` of each second, at most
// `video_maxlen` and all of them, spread from the first to the last. `seconds` is the length of the stream, 0 if it is
// not known. Requires frames > 0.
std::vector<int64_t> sampled_frames(int64_t frames, double seconds, double video_fps, int64_t video_maxlen);

// Constant after construction; may be used by several threads at once.
class VideoProcessor {
 public:
  // Throws ConfigError when the settings make no sense.
  explicit VideoProcessor(const VideoProcessorSettings& settings);

  const VideoProcessorSettings& settings() const { return settings_; }
  // The frames of a time patch, the tokens of a grid, and the numbers in a patch row.
  int64_t frames_per_patch() const { return settings_.model.temporal_patch_size; }
  int64_t tokens(const PatchGrid& grid) const { return frames_.tokens(grid); }
  int64_t row_width() const { return frames_.row_width(); }

  // Returns the size that the model's step gives to frames of this size.
  ImageSize model_size(int64_t frames, ImageSize size, const std::string& name) const;
  // Returns the patches of `frames` frames of this size after both steps. Requires frames > 0. Throws DataError, naming
  // the video, for a size that cannot be prepared.
  PatchGrid grid(int64_t frames, ImageSize size, const std::string& name) const;

  // Applies LLaMA-Factory's step to a frame.
  Image pre_resize(Image frame, const std::string& name) const { return frames_.pre_resize(std::move(frame), name); }
  // Applies the model's part to the frames of one time patch (fewer: the last one is repeated), which have all had the
  // first step: writes the rows of a grid with t = 1.
  void patch_rows(std::span<const Image> frames, const PatchGrid& grid, float* rows) const;

 private:
  VideoProcessorSettings settings_;
  ImageProcessor frames_;  // limits of the data in place of those of images
};

}  // namespace megalith::media
