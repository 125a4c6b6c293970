// The formulas are Pillow's (src/libImaging/Convert.c, AlphaComposite.c): integers with the roundings given there.
#include "megalith/media/image.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::media {

namespace {

// a * b / 255, rounded.
int multiply_255(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

uint8_t clamp_byte(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Writes one pixel of `out` for each of `in`; both have the same size.
template <typename PixelFunction>
Image map_pixels(const Image& in, ImageMode mode, PixelFunction&& pixel) {
  Image out(mode, in.width, in.height);
  const int64_t pixels = in.width * in.height;
  const int from_step = channels(in.mode);
  const int to_step = channels(mode);
  const uint8_t* from = in.data.get();
  uint8_t* to = out.data.get();
  for (int64_t i = 0; i < pixels; ++i, from += from_step, to += to_step) pixel(from, to);
  return out;
}

void copy_color(const Color& color, uint8_t* to) { std::copy(color.begin(), color.end(), to); }

// Pillow keeps a palette's transparency through convert("RGB") only when exactly one entry is fully transparent and all
// others are opaque.
std::optional<Color> single_transparent(const Image& image) {
  std::optional<size_t> found;
  for (size_t i = 0; i < image.palette_alpha.size(); ++i) {
    if (image.palette_alpha[i] == 255) continue;
    if (image.palette_alpha[i] != 0 || found) return std::nullopt;
    found = i;
  }
  if (!found) return std::nullopt;
  return image.palette[*found];
}

// One color channel of a pixel with this alpha on white, as Pillow composites onto an opaque background.
uint8_t blend_white(int value, int alpha) {
  if (alpha == 0) return 255;
  const int weight = alpha * 128;  // 255 * 128 is opaque
  const int sum = value * weight + 255 * (255 * 128 - weight) + (128 << 7);
  return static_cast<uint8_t>((((sum >> 8) + sum) >> 8) >> 7);
}

Image cmyk_to_rgb(const Image& image) {
  return map_pixels(image, ImageMode::kRgb, [](const uint8_t* from, uint8_t* to) {
    const int paper = 255 - from[3];
    for (int c = 0; c < 3; ++c) to[c] = clamp_byte(paper - multiply_255(from[c], paper));
  });
}

}  // namespace

int channels(ImageMode mode) {
  switch (mode) {
    case ImageMode::kBits:
    case ImageMode::kGrey:
    case ImageMode::kPalette:
      return 1;
    case ImageMode::kGreyAlpha:
      return 2;
    case ImageMode::kRgb:
      return 3;
    case ImageMode::kRgba:
    case ImageMode::kCmyk:
      return 4;
  }
  return 0;
}

Image::Image(ImageMode image_mode, int64_t image_width, int64_t image_height)
    : mode(image_mode), width(image_width), height(image_height) {
  check(width > 0 && height > 0 && width <= kMaxPixels / height, "an image of {} x {} pixels", width, height);
  data = std::make_unique_for_overwrite<uint8_t[]>(row_bytes() * static_cast<size_t>(height) + kSlack);
}

Image to_rgb(Image image) {
  switch (image.mode) {
    case ImageMode::kRgb:
      return image;
    case ImageMode::kBits:
    case ImageMode::kGrey: {
      Image out =
          map_pixels(image, ImageMode::kRgb, [](const uint8_t* from, uint8_t* to) { to[0] = to[1] = to[2] = from[0]; });
      out.transparent = image.transparent;
      return out;
    }
    case ImageMode::kGreyAlpha:
      return map_pixels(image, ImageMode::kRgb,
                        [](const uint8_t* from, uint8_t* to) { to[0] = to[1] = to[2] = from[0]; });
    case ImageMode::kPalette: {
      Image out = map_pixels(image, ImageMode::kRgb,
                             [&](const uint8_t* from, uint8_t* to) { copy_color(image.palette[from[0]], to); });
      out.transparent = single_transparent(image);
      return out;
    }
    case ImageMode::kRgba:
      return map_pixels(image, ImageMode::kRgb,
                        [](const uint8_t* from, uint8_t* to) { std::copy(from, from + 3, to); });
    case ImageMode::kCmyk:
      return cmyk_to_rgb(image);
  }
  check(false, "an unknown image mode");
  return {};
}

Image on_white(Image image) {
  switch (image.mode) {
    case ImageMode::kGreyAlpha:
      return map_pixels(image, ImageMode::kRgb, [](const uint8_t* from, uint8_t* to) {
        to[0] = to[1] = to[2] = blend_white(from[0], from[1]);
      });
    case ImageMode::kRgba:
      return map_pixels(image, ImageMode::kRgb, [](const uint8_t* from, uint8_t* to) {
        for (int c = 0; c < 3; ++c) to[c] = blend_white(from[c], from[3]);
      });
    case ImageMode::kPalette:
      if (image.palette_alpha.empty()) break;
      return map_pixels(image, ImageMode::kRgb, [&](const uint8_t* from, uint8_t* to) {
        const Color& color = image.palette[from[0]];
        for (size_t c = 0; c < 3; ++c) to[c] = blend_white(color[c], image.palette_alpha[from[0]]);
      });
    default:
      break;
  }
  Image rgb = to_rgb(std::move(image));
  if (rgb.transparent) {
    const Color key = *rgb.transparent;
    uint8_t* pixel = rgb.data.get();
    for (int64_t i = 0; i < rgb.width * rgb.height; ++i, pixel += 3)
      if (std::equal(key.begin(), key.end(), pixel)) std::fill(pixel, pixel + 3, uint8_t{255});
    rgb.transparent.reset();
  }
  return rgb;
}

void premultiply(Image& image) {
  const int step = channels(image.mode);
  uint8_t* pixel = image.data.get();
  for (int64_t i = 0; i < image.width * image.height; ++i, pixel += step)
    for (int c = 0; c + 1 < step; ++c) pixel[c] = static_cast<uint8_t>(multiply_255(pixel[c], pixel[step - 1]));
}

void unpremultiply(Image& image) {
  const int step = channels(image.mode);
  uint8_t* pixel = image.data.get();
  for (int64_t i = 0; i < image.width * image.height; ++i, pixel += step) {
    const int alpha = pixel[step - 1];
    if (alpha == 0 || alpha == 255) continue;
    for (int c = 0; c + 1 < step; ++c) pixel[c] = clamp_byte(255 * pixel[c] / alpha);
  }
}

}  // namespace megalith::media
