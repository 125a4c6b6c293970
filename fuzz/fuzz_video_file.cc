// Files are read through FFmpeg, which wants a path: the bytes go into a file in memory.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/media/video_file.h"

namespace megalith::fuzz {

namespace {

// A file in memory, gone with the object.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz.video", MFD_CLOEXEC)) {
    check(descriptor_ >= 0, "no file in memory");
    check(::write(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes), "the file in memory is not complete");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace

void video_file(std::string_view input) {
  const MemoryFile file(input);
  try {
    const media::VideoInfo info = media::read_video_info(file.path());
    check(info.frames > 0 && info.size.width > 0 && info.size.height > 0, "a video without frames");
    // The work grows with the pixels that a header promises: try small frames only.
    if (info.size.width * info.size.height > 1 << 18) return;
    const std::array<int64_t, 3> numbers{0, 0, 3};
    size_t taken = 0;
    media::read_video_frames(file.path(), numbers, [&](size_t i, const media::Image& frame) {
      check(i == taken++, "frames in another order");
      check(frame.bytes().size() == static_cast<size_t>(3 * frame.width * frame.height), "another number of pixels");
    });
    check(taken == numbers.size(), "{} of {} frames", taken, numbers.size());
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with(file.path() + ": "), "a message without the file: {}",
          error.what());
  } catch (const ConfigError&) {  // an installation without the plug-in
  }
}

}  // namespace megalith::fuzz
