#include "megalith/media/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/media/resample_internal.h"

namespace megalith::media {

namespace {

constexpr int kPillowPrecision = 22;

// The cubic convolution kernel with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

// ATen: as many bits after the point as leave the largest weight below 1 << 15.
int aten_precision(double largest) {
  int precision = 0;
  for (; precision < 22; ++precision)
    if (static_cast<int>(0.5 + largest * (1 << (precision + 1))) >= 1 << 15) break;
  return precision;
}

}  // namespace

FilterTaps make_taps(int64_t in_size, int64_t out_size, Resampler resampler) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double stretch = std::max(scale, 1.0);  // shrinking widens the kernel
  const double support = 2.0 * stretch;
  const auto most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  FilterTaps taps;
  taps.taps = most + (most & 1);
  std::vector<double> exact(static_cast<size_t>(out_size * taps.taps), 0.0);
  double largest = 0;
  for (int64_t i = 0; i < out_size; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + support + 0.5), in_size);
    const int64_t count = std::clamp<int64_t>(end - first, 0, most);
    double* weights = exact.data() + i * taps.taps;
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) {
      weights[j] = cubic((static_cast<double>(j + first) - center + 0.5) * (1.0 / stretch));
      sum += weights[j];
    }
    for (int64_t j = 0; j < count && sum != 0.0; ++j) {
      weights[j] /= sum;
      largest = std::max(largest, weights[j]);
    }
    taps.first.push_back(first);
    taps.count.push_back(count);
  }

  taps.wide = resampler == Resampler::kPillow;
  taps.precision = taps.wide ? kPillowPrecision : aten_precision(largest);
  for (const double weight : exact) {
    const double scaled = weight * (1 << taps.precision);
    const auto fixed = static_cast<int32_t>(scaled + (weight < 0 ? -0.5 : 0.5));
    taps.weights.push_back(fixed);
    taps.high.push_back(static_cast<int16_t>(taps.wide ? fixed >> 8 : fixed));
    if (taps.wide) taps.low.push_back(static_cast<int16_t>(fixed & 255));
  }
  return taps;
}

namespace {

Image filter_width(const Image& image, int64_t width, Resampler resampler) {
  Image out(image.mode, width, image.height);
  filter_rows(image, out, make_taps(image.width, width, resampler));
  return out;
}

Image filter_height(const Image& image, int64_t height, Resampler resampler) {
  Image out(image.mode, image.width, height);
  filter_columns(image, out, make_taps(image.height, height, resampler));
  return out;
}

Image copy_of(const Image& image) {
  Image out(image.mode, image.width, image.height);
  std::memcpy(out.data.get(), image.data.get(), image.bytes().size());
  return out;
}

Image bicubic(const Image& image, int64_t width, int64_t height, Resampler resampler) {
  if (width == image.width && height == image.height) return copy_of(image);
  if (width == image.width) return filter_height(image, height, resampler);
  if (height == image.height) return filter_width(image, width, resampler);
  // Pillow 13 starts with the columns when that removes more than twice as many rows as columns.
  const int64_t fewer_rows = image.height - height;
  if (resampler == Resampler::kPillow && fewer_rows > 0 && fewer_rows > 2 * (image.width - width))
    return filter_width(filter_height(image, height, resampler), width, resampler);
  return filter_height(filter_width(image, width, resampler), height, resampler);
}

// The input position of each output position. Pillow adds up the step, and so its rounding errors.
std::vector<int64_t> nearest_positions(int64_t in_size, int64_t out_size) {
  const double step = static_cast<double>(in_size) / static_cast<double>(out_size);
  std::vector<int64_t> positions;
  double at = step * 0.5;
  for (int64_t i = 0; i < out_size; ++i, at += step)
    positions.push_back(std::min(static_cast<int64_t>(at), in_size - 1));
  return positions;
}

Image nearest(const Image& image, int64_t width, int64_t height) {
  Image out(image.mode, width, height);
  const std::vector<int64_t> columns = nearest_positions(image.width, width);
  const std::vector<int64_t> rows = nearest_positions(image.height, height);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* from = image.row(rows[static_cast<size_t>(y)]);
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < width; ++x) to[x] = from[columns[static_cast<size_t>(x)]];
  }
  return out;
}

}  // namespace

Image resize(const Image& image, int64_t width, int64_t height, Resampler resampler) {
  check(resampler == Resampler::kPillow || image.mode == ImageMode::kRgb || image.mode == ImageMode::kGrey,
        "ATen's resampler takes grey and RGB images");
  Image out;
  switch (image.mode) {
    case ImageMode::kBits:
    case ImageMode::kPalette:
      out = nearest(image, width, height);
      break;
    case ImageMode::kGreyAlpha:
    case ImageMode::kRgba: {
      if (width == image.width && height == image.height) return copy_of(image);
      Image colors = copy_of(image);
      premultiply(colors);
      out = bicubic(colors, width, height, resampler);
      unpremultiply(out);
      break;
    }
    default:
      out = bicubic(image, width, height, resampler);
  }
  out.palette = image.palette;
  out.palette_alpha = image.palette_alpha;
  out.transparent = image.transparent;
  return out;
}

}  // namespace megalith::media
