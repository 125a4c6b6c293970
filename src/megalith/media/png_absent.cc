// Replaces png.cc in a build without libpng.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

bool has_png() { return false; }

Image decode_png(std::string_view /*bytes*/, const ImageHeader& /*header*/, const std::string& name) {
  throw ConfigError(fmt::format(
      "{} is a PNG file, and this build has no libpng. Convert it, or build with libpng-dev installed", name));
}

}  // namespace megalith::media
