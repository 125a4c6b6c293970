// decode_image: the pixels of JPEG, PNG and WebP files, as Pillow decodes them.
#pragma once

#include <string>
#include <string_view>

#include "megalith/media/image.h"
#include "megalith/media/image_header.h"

namespace megalith::media {

// Returns whether this build can decode the format; its library may have been missing.
bool can_decode(ImageFormat format);

// Decodes in the mode of the file. Deviations from Pillow: 16-bit grey keeps its upper eight bits, as all other 16-bit
// images do there, while Pillow's conversion to RGB makes everything above 255 white; and animations are refused.
//
// JPEG comes from libjpeg-turbo with the exact integer IDCT and smooth upsampling; CMYK counts as inverted, as Adobe's
// programs write it. Throws DataError, naming the image, for everything that read_image_header refuses and for damaged
// content, and ConfigError when the build lacks the library. Memory is allocated only after the size was checked.
Image decode_image(std::string_view bytes, const std::string& name);

}  // namespace megalith::media
