#include <array>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/media/video_file.h"

namespace megalith::fuzz {

void video_file(std::string_view input) {
  try {
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
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.video: "), "a message without the file: {}", error.what());
  } catch (const ConfigError&) {  // an installation without the plug-in
  }
}

}  // namespace megalith::fuzz
