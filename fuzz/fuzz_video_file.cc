#include <array>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/media/video_file.h"

namespace megalith::fuzz {

namespace {

// Runs one of the two readers, which stand on their own: a file may have good frames and a damaged sound.
template <typename Read>
void try_reading(const Read& read) {
  try {
    read();
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.video: "), "a message without the file: {}", error.what());
  } catch (const ConfigError&) {  // an installation without the plug-in
  }
}

void read_frames(std::string_view input) {
  const media::VideoInfo info = media::read_video_info(input, "fuzz.video");
  check(info.frames > 0 && info.size.width > 0 && info.size.height > 0, "a video without frames");
  // The work grows with the pixels that a header promises: try small frames only.
  if (info.size.width * info.size.height > 1 << 18) return;
  const std::array<int64_t, 3> numbers{0, 0, 3};
  size_t taken = 0;
  media::read_video_frames(input, "fuzz.video", numbers, [&](size_t i, const media::Image& frame) {
    check(i == taken++, "frames in another order");
    check(frame.bytes().size() == static_cast<size_t>(3 * frame.width * frame.height), "another number of pixels");
  });
  check(taken == numbers.size(), "{} of {} frames", taken, numbers.size());
}

void read_sound(std::string_view input) {
  const auto header = media::read_video_sound_header(input, "fuzz.video");
  // Likewise with the samples, which become memory.
  if (!header || header->samples > 1 << 20) return;
  const media::Sound sound = media::decode_video_sound(input, "fuzz.video");
  check(sound.rate == header->rate && std::ssize(sound.samples) == header->samples, "another size than the header's");
}

}  // namespace

void video_file(std::string_view input) {
  try_reading([&] { read_frames(input); });
  try_reading([&] { read_sound(input); });
}

}  // namespace megalith::fuzz
