#include "megalith/media/decode.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

bool can_decode(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return has_jpeg();
    case ImageFormat::kPng:
      return has_png();
    case ImageFormat::kWebp:
      return has_webp();
  }
  return false;
}

Image decode_image(std::string_view bytes, const std::string& name) {
  const ImageHeader header = read_image_header(bytes, name);
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(bytes, header, name);
    case ImageFormat::kPng:
      return decode_png(bytes, header, name);
    case ImageFormat::kWebp:
      return decode_webp(bytes, header, name);
  }
  check(false, "an unknown image format");
  return {};
}

void refuse_damaged(const std::string& name, ImageFormat format, std::string_view problem) {
  throw DataError(fmt::format("{}: a damaged {} file: {}", name, format_name(format), problem));
}

}  // namespace megalith::media
