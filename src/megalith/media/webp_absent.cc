// Replaces webp.cc in a build without libwebp.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

bool has_webp() { return false; }

Image decode_webp(std::string_view /*bytes*/, const ImageHeader& /*header*/, const std::string& name) {
  throw ConfigError(fmt::format(
      "{} is a WebP file, and this build has no libwebp. Convert it, or build with libwebp-dev installed", name));
}

}  // namespace megalith::media
