// Replaces jpeg.cc in a build without libjpeg-turbo.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

bool has_jpeg() { return false; }

Image decode_jpeg(std::string_view /*bytes*/, const ImageHeader& /*header*/, const std::string& name) {
  throw ConfigError(fmt::format(
      "{} is a JPEG file, and this build has no libjpeg-turbo. Convert it, or build with libjpeg-dev installed", name));
}

}  // namespace megalith::media
