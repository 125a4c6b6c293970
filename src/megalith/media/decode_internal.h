// The decoders of one format each. `header` was read from the same bytes and its size is allowed.
#pragma once

#include <string>
#include <string_view>

#include "megalith/media/image.h"
#include "megalith/media/image_header.h"

namespace megalith::media {

Image decode_jpeg(std::string_view bytes, const ImageHeader& header, const std::string& name);
Image decode_png(std::string_view bytes, const ImageHeader& header, const std::string& name);
Image decode_webp(std::string_view bytes, const ImageHeader& header, const std::string& name);

// Whether the build has them; the files *_absent.cc say no.
bool has_jpeg();
bool has_png();
bool has_webp();

// Throws DataError: "photo.jpg: a damaged JPEG file: <problem>".
[[noreturn]] void refuse_damaged(const std::string& name, ImageFormat format, std::string_view problem);

}  // namespace megalith::media
