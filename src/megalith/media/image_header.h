// The size of an image from the first bytes of its file: what tokenizing needs, without decoding anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace megalith::media {

enum class ImageFormat { kJpeg, kPng, kWebp };

// Returns "JPEG", "PNG" or "WebP".
std::string_view format_name(ImageFormat format);

struct ImageHeader {
  ImageFormat format = ImageFormat::kJpeg;
  int64_t width = 0;  // as stored: a rotation that EXIF asks for is not applied
  int64_t height = 0;
};

// Reads what stands before the first pixels. Only the pages that hold it are touched, but a JPEG may have megabytes of
// metadata in front of its size.
//
// Throws DataError, naming the image, for a file that is missing, empty or cut off, of another format (with the command
// that converts it), an animation, or larger than kMaxPixels. `name` stands for the image in messages.
ImageHeader read_image_header(std::string_view bytes, const std::string& name);
ImageHeader read_image_header(const std::filesystem::path& path);

}  // namespace megalith::media
