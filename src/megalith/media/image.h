// Image: decoded pixels in memory, and the conversions between the ways of storing them.
//
// An image keeps the mode of its file until it is resized, as Pillow's images do: a palette image is resized by its
// nearest indices, one with alpha by its premultiplied colours. Results are Pillow's, byte for byte.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace megalith::media {

enum class ImageMode {
  kBits,       // 1 byte per pixel, 0 or 255; Pillow's "1"
  kGrey,       // 1 byte; "L"
  kGreyAlpha,  // 2 bytes; "LA"
  kPalette,    // 1 byte, an index into `palette`; "P"
  kRgb,        // 3 bytes; "RGB"
  kRgba,       // 4 bytes; "RGBA"
  kCmyk        // 4 bytes, 0 means without ink; "CMYK"
};

// Returns the bytes of one pixel.
int channels(ImageMode mode);

using Color = std::array<uint8_t, 3>;  // red, green, blue

// Rows from top to bottom without gaps. The buffer has kSlack further bytes, so that vector loads may read past the
// last pixel and vector stores write there.
struct Image {
  static constexpr size_t kSlack = 64;

  Image() = default;
  // Pixels are not initialised. Throws InternalError for a size below 1 and for more than kMaxPixels.
  Image(ImageMode image_mode, int64_t image_width, int64_t image_height);

  size_t row_bytes() const { return static_cast<size_t>(width) * static_cast<size_t>(channels(mode)); }
  uint8_t* row(int64_t y) { return data.get() + static_cast<size_t>(y) * row_bytes(); }
  const uint8_t* row(int64_t y) const { return data.get() + static_cast<size_t>(y) * row_bytes(); }
  std::span<const uint8_t> bytes() const { return {data.get(), row_bytes() * static_cast<size_t>(height)}; }

  ImageMode mode = ImageMode::kRgb;
  int64_t width = 0;
  int64_t height = 0;
  std::unique_ptr<uint8_t[]> data;

  std::vector<Color> palette;          // kPalette: 256 entries
  std::vector<uint8_t> palette_alpha;  // kPalette: 256 entries, or empty when every color is opaque
  std::optional<Color> transparent;    // kGrey and kRgb: pixels of this color count as transparent
};

// Pillow refuses images with more pixels than this, and so does decode_image(): 2 x 1024^3 / 4 / 3.
inline constexpr int64_t kMaxPixels = 178'956'970;

// Returns the colors alone, as Pillow's convert("RGB"): alpha is dropped, not blended. One transparent color among
// otherwise opaque ones survives as `transparent`.
Image to_rgb(Image image);

// Returns the image as it looks on a white page: alpha is blended, the transparent color becomes white. What the image
// processors of the model families do with an image that is not RGB.
Image on_white(Image image);

// Multiply the colors of kGreyAlpha and kRgba by alpha and divide by it again, with Pillow's roundings. Bicubic
// resampling happens in between, so that the color of invisible pixels does not leak into visible ones.
void premultiply(Image& image);
void unpremultiply(Image& image);

}  // namespace megalith::media
