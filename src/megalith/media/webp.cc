// WebP by libwebp.
#include <webp/decode.h>

#include <fmt/format.h>

#include "megalith/media/decode_internal.h"

namespace megalith::media {

namespace {

std::string_view webp_problem(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "there is not enough memory for it";
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "it ends early; the file was cut off";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses a feature that libwebp does not have";
    default:
      return "its content makes no sense";
  }
}

}  // namespace

bool has_webp() { return true; }

Image decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& name) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) refuse_damaged(name, ImageFormat::kWebp, "libwebp has another version");
  const VP8StatusCode found = WebPGetFeatures(data, bytes.size(), &config.input);
  if (found != VP8_STATUS_OK) refuse_damaged(name, ImageFormat::kWebp, webp_problem(found));
  if (config.input.has_animation != 0 || config.input.width != header.width || config.input.height != header.height)
    refuse_damaged(name, ImageFormat::kWebp, "its header and its image differ");

  Image image(config.input.has_alpha != 0 ? ImageMode::kRgba : ImageMode::kRgb, header.width, header.height);
  config.output.colorspace = image.mode == ImageMode::kRgba ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.data.get();
  config.output.u.RGBA.stride = static_cast<int>(image.row_bytes());
  config.output.u.RGBA.size = image.bytes().size();
  const VP8StatusCode status = WebPDecode(data, bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) refuse_damaged(name, ImageFormat::kWebp, webp_problem(status));
  return image;
}

}  // namespace megalith::media
