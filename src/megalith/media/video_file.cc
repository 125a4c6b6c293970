// The plug-in is opened by its plain name, so that the dynamic linker searches where it searches for every library: the
// RPATH of the program, then LD_LIBRARY_PATH. RTLD_LOCAL keeps the symbols of FFmpeg's hundred libraries apart.
#include "megalith/media/video_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "megalith/base/error.h"
#include "megalith/media/video_stream_internal.h"

namespace megalith::media {

namespace {

constexpr const char* kVideoPluginName = "libmegalith_video.so";

OpenVideoStream video_plugin(const std::string& name) {
  void* const library = ::dlopen(kVideoPluginName, RTLD_NOW | RTLD_LOCAL);
  check<ConfigError>(library != nullptr,
                     "{}: video files are read with FFmpeg's libraries, and this installation lacks them ({}). Install "
                     "libavformat-dev, libavcodec-dev and libswscale-dev and build again; or give the video as a list "
                     "of images: ffmpeg -i {} -vf fps=2 frame-%03d.png",
                     name, ::dlerror(), name);
  void* const function = ::dlsym(library, kOpenVideoStreamName);
  check<ConfigError>(function != nullptr, "the {} that was found belongs to another version of Megalith ({})",
                     kVideoPluginName, ::dlerror());
  return reinterpret_cast<OpenVideoStream>(function);
}

// A file in memory with these bytes, gone with the object.
class MemoryFile {
 public:
  MemoryFile(std::string_view bytes, const std::string& name) : descriptor_(::memfd_create("video", MFD_CLOEXEC)) {
    check<DataError>(descriptor_ >= 0, "{}: there is no room in memory for the video ({})", name, std::strerror(errno));
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      const int error = errno;
      if (written <= 0) ::close(descriptor_);
      check<DataError>(written > 0, "{}: there is no room in memory for the video ({})", name, std::strerror(error));
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  const int descriptor_;
};

std::unique_ptr<VideoStream> open_stream(const std::filesystem::path& path, const std::string& name) {
  check<DataError>(std::filesystem::is_regular_file(path), "{}: the video does not exist", name);
  const OpenVideoStream open = video_plugin(name);
  try {
    return std::unique_ptr<VideoStream>(open(path.c_str()));
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

void check_pixels(int64_t width, int64_t height, const std::string& name) {
  check<DataError>(width > 0 && height > 0 && width <= kMaxPixels / height,
                   "{}: frames of {} x {} pixels; at most {} pixels can be read", name, width, height, kMaxPixels);
}

VideoInfo info_of(const std::filesystem::path& path, const std::string& name) {
  const VideoHeader header = open_stream(path, name)->header();
  check_pixels(header.width, header.height, name);
  check<DataError>(header.frames > 0, "{}: the video has no frames", name);
  return {header.frames, header.seconds, header.per_second, {header.width, header.height}};
}

void read_frames(const std::filesystem::path& path, const std::string& name, std::span<const int64_t> numbers,
                 const std::function<void(size_t i, Image frame)>& take) {
  const auto stream = open_stream(path, name);
  int64_t at = -1;  // number of the current frame
  bool ended = false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    try {
      while (!ended && at < numbers[i]) {
        ended = !stream->next();
        if (!ended) ++at;
      }
    } catch (const std::exception& error) {
      throw DataError(fmt::format("{}: frame {}: {}", name, at + 1, error.what()));
    }
    check<DataError>(at >= 0, "{}: no frame can be decoded", name);
    check_pixels(stream->width(), stream->height(), name);
    Image frame(ImageMode::kRgb, stream->width(), stream->height());
    try {
      stream->copy_rgb(frame.data.get());
    } catch (const std::exception& error) {
      throw DataError(fmt::format("{}: frame {}: {}", name, at, error.what()));
    }
    take(i, std::move(frame));
  }
}

}  // namespace

VideoInfo read_video_info(const std::filesystem::path& path) { return info_of(path, path.string()); }

VideoInfo read_video_info(std::string_view bytes, const std::string& name) {
  const MemoryFile file(bytes, name);
  return info_of(file.path(), name);
}

void read_video_frames(const std::filesystem::path& path, std::span<const int64_t> numbers,
                       const std::function<void(size_t i, Image frame)>& take) {
  read_frames(path, path.string(), numbers, take);
}

void read_video_frames(std::string_view bytes, const std::string& name, std::span<const int64_t> numbers,
                       const std::function<void(size_t i, Image frame)>& take) {
  const MemoryFile file(bytes, name);
  read_frames(file.path(), name, numbers, take);
}

}  // namespace megalith::media
