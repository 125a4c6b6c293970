// The plug-in is opened by its plain name, so that the dynamic linker searches where it searches for every library: the
// RPATH of the program, then LD_LIBRARY_PATH. RTLD_LOCAL keeps the symbols of FFmpeg's hundred libraries apart.
#include "megalith/media/video_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "megalith/base/error.h"
#include "megalith/media/audio_internal.h"
#include "megalith/media/video_stream_internal.h"

namespace megalith::media {

namespace {

constexpr const char* kVideoPluginName = "libmegalith_video.so";

// Returns a function of the plug-in; `name` is that of the file to be read.
template <typename Function>
Function plugin_function(const char* function_name, const std::string& name) {
  void* const library = ::dlopen(kVideoPluginName, RTLD_NOW | RTLD_LOCAL);
  check<ConfigError>(library != nullptr,
                     "{}: video files are read with FFmpeg's libraries, and this installation lacks them ({}). Install "
                     "libavformat-dev, libavcodec-dev and libswscale-dev and build again; or give the video as a list "
                     "of images: ffmpeg -i {} -vf fps=2 frame-%03d.png",
                     name, ::dlerror(), name);
  void* const function = ::dlsym(library, function_name);
  check<ConfigError>(function != nullptr, "the {} that was found belongs to another version of Megalith ({})",
                     kVideoPluginName, ::dlerror());
  return reinterpret_cast<Function>(function);
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

template <typename Stream, typename Function>
std::unique_ptr<Stream> open_with(const char* function_name, const std::filesystem::path& path,
                                  const std::string& name) {
  check<DataError>(std::filesystem::is_regular_file(path), "{}: the video does not exist", name);
  const auto open = plugin_function<Function>(function_name, name);
  try {
    return std::unique_ptr<Stream>(open(path.c_str()));
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

std::unique_ptr<VideoStream> open_stream(const std::filesystem::path& path, const std::string& name) {
  return open_with<VideoStream, OpenVideoStream>(kOpenVideoStreamName, path, name);
}

// Returns nullptr for a file without sound.
std::unique_ptr<SoundStream> open_sound(const std::filesystem::path& path, const std::string& name) {
  return open_with<SoundStream, OpenSoundStream>(kOpenSoundStreamName, path, name);
}

SoundHeader header_of(const SoundStream& stream, const std::string& name) {
  check<DataError>(stream.seconds() > 0,
                   "{}: the file does not say how long its sound is; write it again: ffmpeg -i {} -c copy OUT.mp4",
                   name, name);
  const double samples = std::round(stream.seconds() * static_cast<double>(stream.rate()));
  const SoundHeader header{
      stream.rate(), stream.channels(),
      samples <= static_cast<double>(kMaxSamples) ? static_cast<int64_t>(samples) : kMaxSamples + 1};
  check_sound_header(header, name);
  return header;
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

std::optional<SoundHeader> sound_header_of(const std::filesystem::path& path, const std::string& name) {
  const auto stream = open_sound(path, name);
  if (!stream) return std::nullopt;
  return header_of(*stream, name);
}

Sound decode_sound_of(const std::filesystem::path& path, const std::string& name) {
  const auto stream = open_sound(path, name);
  check<DataError>(stream != nullptr, "{}: the file has no sound", name);
  const SoundHeader header = header_of(*stream, name);
  Sound sound{.rate = header.rate};
  try {
    while (std::ssize(sound.samples) < header.samples && stream->next())
      sound.samples.insert(sound.samples.end(), stream->samples(), stream->samples() + stream->count());
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: its sound: {}", name, error.what()));
  }
  for (const float sample : sound.samples)
    if (!std::isfinite(sample)) refuse_damaged_sound(name, "a sample is not a number");
  sound.samples.resize(static_cast<size_t>(header.samples));
  return sound;
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

bool is_video_container(std::string_view bytes) {
  return bytes.substr(0, 12).substr(std::min<size_t>(4, bytes.size())).starts_with("ftyp") ||
         bytes.starts_with("\x1A\x45\xDF\xA3") ||
         (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "AVI ");
}

std::optional<SoundHeader> read_video_sound_header(const std::filesystem::path& path) {
  return sound_header_of(path, path.string());
}

std::optional<SoundHeader> read_video_sound_header(std::string_view bytes, const std::string& name) {
  const MemoryFile file(bytes, name);
  return sound_header_of(file.path(), name);
}

Sound decode_video_sound(const std::filesystem::path& path) { return decode_sound_of(path, path.string()); }

Sound decode_video_sound(std::string_view bytes, const std::string& name) {
  const MemoryFile file(bytes, name);
  return decode_sound_of(file.path(), name);
}

}  // namespace megalith::media
