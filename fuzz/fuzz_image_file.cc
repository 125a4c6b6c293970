#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/media/decode.h"
#include "megalith/media/image_header.h"

namespace megalith::fuzz {

void image_file(std::string_view input) {
  try {
    const media::ImageHeader header = media::read_image_header(input, "fuzz.image");
    // The work grows with the pixels that a header promises: try small images only.
    if (header.width * header.height > 1 << 18) return;
    const media::Image image = media::decode_image(input, "fuzz.image");
    check(image.width == header.width && image.height == header.height, "another size than the header's");
    const media::Image rgb = media::on_white(media::decode_image(input, "fuzz.image"));
    check(rgb.bytes().size() == static_cast<size_t>(3 * header.width * header.height), "another number of pixels");
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.image: "), "a message without the file: {}", error.what());
  } catch (const ConfigError&) {  // a build without the library
  }
}

}  // namespace megalith::fuzz
