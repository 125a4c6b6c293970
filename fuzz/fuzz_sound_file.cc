#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/media/audio.h"

namespace megalith::fuzz {

void sound_file(std::string_view input) {
  try {
    const media::SoundHeader header = media::read_sound_header(input, "fuzz.sound");
    const media::Sound sound = media::decode_sound(input, "fuzz.sound");
    check(sound.rate == header.rate && std::ssize(sound.samples) == header.samples, "another size than the header's");
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.sound: "), "a message without the file: {}", error.what());
  } catch (const ConfigError&) {  // a build without the library
  }
}

}  // namespace megalith::fuzz
