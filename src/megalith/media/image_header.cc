// Sizes in headers:
//
//   PNG   8 bytes signature, chunk IHDR: width, height (4 bytes each, big endian). Animated: acTL before IDAT.
//   JPEG  markers FF xx, each with a length; SOF0 to SOF15 (but DHT, JPG, DAC): precision, height, width.
//   WebP  "RIFF", size, "WEBP", then VP8X (flags, 3-byte sizes minus one), "VP8 " (the header of a key frame) or VP8L
//         (14 bits each).
#include "megalith/media/image_header.h"

#include <fmt/format.h>

#include <array>

#include "megalith/base/error.h"
#include "megalith/io/mapped_file.h"
#include "megalith/media/image.h"

namespace megalith::media {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& problem) {
  throw DataError(fmt::format("{}: {}", name, problem));
}

// Numbers at byte positions; a position past the end means that the file is cut off.
class HeaderBytes {
 public:
  HeaderBytes(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  size_t size() const { return bytes_.size(); }
  uint32_t byte(size_t at) const {
    if (at >= bytes_.size())
      refuse(name_, fmt::format("the file ends after {} bytes, inside its header; it was cut off", bytes_.size()));
    return static_cast<uint8_t>(bytes_[at]);
  }
  uint32_t big16(size_t at) const { return byte(at) << 8 | byte(at + 1); }
  uint32_t big32(size_t at) const { return big16(at) << 16 | big16(at + 2); }
  uint32_t little16(size_t at) const { return byte(at) | byte(at + 1) << 8; }
  uint32_t little24(size_t at) const { return little16(at) | byte(at + 2) << 16; }
  uint32_t little32(size_t at) const { return little16(at) | little16(at + 2) << 16; }
  bool has(size_t at, std::string_view text) const { return bytes_.substr(std::min(at, size())).starts_with(text); }

 private:
  std::string_view bytes_;
  const std::string& name_;
};

// Formats that are recognized in order to say how to convert them.
struct OtherFormat {
  std::string_view name;
  size_t at;
  std::string_view signature;
};
using namespace std::string_view_literals;
constexpr std::array kOtherFormats = {
    OtherFormat{"GIF", 0, "GIF8"sv},         OtherFormat{"BMP", 0, "BM"sv},
    OtherFormat{"TIFF", 0, "II*\0"sv},       OtherFormat{"TIFF", 0, "MM\0*"sv},
    OtherFormat{"AVIF", 4, "ftypavif"sv},    OtherFormat{"AVIF", 4, "ftypavis"sv},
    OtherFormat{"HEIC", 4, "ftypheic"sv},    OtherFormat{"HEIC", 4, "ftypheix"sv},
    OtherFormat{"HEIC", 4, "ftypmif1"sv},    OtherFormat{"HEIC", 4, "ftyphevc"sv},
    OtherFormat{"JPEG XL", 0, "\xff\x0a"sv}, OtherFormat{"JPEG XL", 4, "JXL "sv},
    OtherFormat{"JPEG 2000", 4, "jP  "sv},   OtherFormat{"ICO", 0, "\0\0\1\0"sv},
    OtherFormat{"Photoshop", 0, "8BPS"sv},   OtherFormat{"PDF", 0, "%PDF"sv},
    OtherFormat{"SVG", 0, "<svg"sv},         OtherFormat{"PPM", 0, "P6\n"sv},
};

[[noreturn]] void refuse_format(const HeaderBytes& bytes, const std::string& name) {
  for (const OtherFormat& other : kOtherFormats) {
    if (!bytes.has(other.at, other.signature)) continue;
    refuse(name, fmt::format("{} images are not read; JPEG, PNG and WebP are. Convert it: magick '{}' '{}.png'",
                             other.name, name, std::filesystem::path(name).replace_extension().string()));
  }
  refuse(name, "not an image that is known here (JPEG, PNG and WebP are read)");
}

[[noreturn]] void refuse_animation(std::string_view format, const std::string& name) {
  refuse(name, fmt::format("an animated {}. Give its frames as a video, or keep the first one: magick '{}[0]' '{}.png'",
                           format, name, std::filesystem::path(name).replace_extension().string()));
}

ImageHeader png_header(const HeaderBytes& bytes, const std::string& name) {
  if (!bytes.has(12, "IHDR")) refuse(name, "a PNG file that does not start with its IHDR chunk");
  const ImageHeader header{ImageFormat::kPng, bytes.big32(16), bytes.big32(20)};
  // Chunks up to the pixels: 4 bytes length, 4 bytes name, the content, 4 bytes checksum.
  for (uint64_t at = 8; at + 8 <= bytes.size() && !bytes.has(at, "\0\0\0\0IEND"sv);) {
    if (bytes.has(at + 4, "IDAT")) break;
    if (bytes.has(at + 4, "acTL")) refuse_animation("PNG", name);
    at += 12ULL + bytes.big32(at);
  }
  return header;
}

ImageHeader jpeg_header(const HeaderBytes& bytes, const std::string& name) {
  for (size_t at = 2;;) {
    // Any number of FF bytes may stand before a marker.
    if (bytes.byte(at) != 0xff) refuse(name, fmt::format("a JPEG file without a marker at byte {}; it is damaged", at));
    while (bytes.byte(at) == 0xff) ++at;
    const uint32_t marker = bytes.byte(at++);
    const bool alone = marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8);
    if (alone) continue;
    if (marker == 0xd9 || marker == 0xda) refuse(name, "a JPEG file without a frame header; it is damaged");
    if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc)
      return {ImageFormat::kJpeg, bytes.big16(at + 5), bytes.big16(at + 3)};
    const uint32_t length = bytes.big16(at);
    if (length < 2) refuse(name, fmt::format("a JPEG file with a segment of {} bytes; it is damaged", length));
    at += length;
  }
}

ImageHeader webp_header(const HeaderBytes& bytes, const std::string& name) {
  ImageHeader header{ImageFormat::kWebp};
  if (bytes.has(12, "VP8X")) {
    if ((bytes.byte(20) & 2U) != 0) refuse_animation("WebP", name);
    header.width = 1 + bytes.little24(24);
    header.height = 1 + bytes.little24(27);
  } else if (bytes.has(12, "VP8 ")) {
    header.width = bytes.little16(26) & 0x3fff;
    header.height = bytes.little16(28) & 0x3fff;
  } else if (bytes.has(12, "VP8L")) {
    const uint32_t sizes = bytes.little32(21);
    header.width = 1 + (sizes & 0x3fff);
    header.height = 1 + (sizes >> 14 & 0x3fff);
  } else {
    refuse(name, "a WebP file without an image chunk; it is damaged");
  }
  return header;
}

}  // namespace

std::string_view format_name(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return "JPEG";
    case ImageFormat::kPng:
      return "PNG";
    case ImageFormat::kWebp:
      return "WebP";
  }
  return "unknown";
}

ImageHeader read_image_header(std::string_view content, const std::string& name) {
  const HeaderBytes bytes(content, name);
  if (content.empty()) refuse(name, "the image is empty (0 bytes)");
  ImageHeader header;
  if (bytes.has(0, "\x89PNG\r\n\x1a\n"sv)) {
    header = png_header(bytes, name);
  } else if (bytes.has(0, "\xff\xd8"sv)) {
    header = jpeg_header(bytes, name);
  } else if (bytes.has(0, "RIFF") && bytes.has(8, "WEBP")) {
    header = webp_header(bytes, name);
  } else {
    refuse_format(bytes, name);
  }
  if (header.width < 1 || header.height < 1)
    refuse(name, fmt::format("the image has {} x {} pixels; it is damaged", header.width, header.height));
  if (header.width > kMaxPixels / header.height)
    refuse(name, fmt::format("the image has {} x {} pixels, more than the {} that are decoded. Make it smaller: magick "
                             "'{}' -resize 4096x4096 '{}.small.png'",
                             header.width, header.height, kMaxPixels, name,
                             std::filesystem::path(name).replace_extension().string()));
  return header;
}

ImageHeader read_image_header(const std::filesystem::path& path) {
  const io::MappedFile file(path);
  return read_image_header(file.text(0, file.size()), path.string());
}

}  // namespace megalith::media
