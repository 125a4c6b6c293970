// ImageProcessor: from an image to the rows of patches that a vision tower takes.
//
// Two steps, as in LLaMA-Factory: its own pre-resize into a range of pixels (the options image_max_pixels and
// image_min_pixels), then the model's processor, which brings both sides to multiples of patch x merge, normalises, and
// cuts the image into patches. How many tokens an image becomes follows from its width and height alone.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "megalith/media/image.h"

namespace megalith::media {

struct ImageSize {
  int64_t width = 0;
  int64_t height = 0;
  bool operator==(const ImageSize&) const = default;
};

// Patches in time, height and width.
struct PatchGrid {
  int64_t t = 0;
  int64_t h = 0;
  int64_t w = 0;
  bool operator==(const PatchGrid&) const = default;
};

struct ImageProcessorSettings {
  // The model's part, from preprocessor_config.json.
  int64_t patch_size = 14;          // pixels along the side of a patch
  int64_t temporal_patch_size = 2;  // frames in a patch; an image is repeated
  int64_t merge_size = 2;           // patches along the side of a token
  int64_t min_pixels = 3136;
  int64_t max_pixels = 12845056;
  std::array<double, 3> mean{0.48145466, 0.4578275, 0.40821073};  // red, green, blue; white is 1
  std::array<double, 3> std{0.26862954, 0.26130258, 0.27577711};
  // The part of the data, which comes first.
  int64_t image_max_pixels = 768 * 768;
  int64_t image_min_pixels = 32 * 32;
  const char* limits_name = "image";  // the options of these two in messages: image_max_pixels, …
};

// Reads the model's part from preprocessor_config.json, or from "image_processor" in processor_config.json, in the
// spelling of transformers 4 (min_pixels, max_pixels) or 5 (size.shortest_edge, size.longest_edge: pixels, too). Throws
// DataError naming the file and the field, also for switches that would change the pixels (do_rescale false, …).
ImageProcessorSettings read_image_processor(const std::filesystem::path& model_folder);

// Constant after construction; may be used by several threads at once.
class ImageProcessor {
 public:
  // Throws ConfigError when the settings make no sense.
  explicit ImageProcessor(const ImageProcessorSettings& settings);

  const ImageProcessorSettings& settings() const { return settings_; }

  // Returns the size after LLaMA-Factory's step. Throws DataError, naming the image, when a side would vanish.
  ImageSize pre_resized(ImageSize size, const std::string& name) const;
  // Returns the size that the model's processor gives to an image of this size. Throws DataError when one side is more
  // than 200 times the other; pre_resized() leaves no such image.
  ImageSize model_size(ImageSize size, const std::string& name) const;
  // Returns the patches of an image of this size after both steps.
  PatchGrid grid(ImageSize size, const std::string& name) const;

  // Returns the number of tokens of a grid, of its patch rows, and of the numbers in a row.
  int64_t tokens(const PatchGrid& grid) const;
  int64_t patches(const PatchGrid& grid) const { return grid.t * grid.h * grid.w; }
  int64_t row_width() const;

  // Applies LLaMA-Factory's step, in the image's own mode, and returns RGB: alpha is dropped, a transparent color
  // becomes white.
  Image pre_resize(Image image, const std::string& name) const;
  // Applies the model's part to an RGB image: writes patches(grid) rows of row_width() numbers. The rows of one token
  // stand together; within a row: channel, time, y, x.
  void patch_rows(const Image& rgb, float* rows, const std::string& name) const;
  // The same for one time patch of a video: as many frames as it holds, each brought to `size`, whose sides are
  // multiples of patch x merge. Writes the rows of a grid with t = 1.
  void patch_rows(std::span<const Image* const> frames, ImageSize size, float* rows) const;

 private:
  void write_rows(std::span<const Image* const> resized, float* rows) const;

  ImageProcessorSettings settings_;
  std::array<std::array<float, 256>, 3> normalised_;  // by channel and byte
};

}  // namespace megalith::media
