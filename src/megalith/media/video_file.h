// Frames of video files (MP4, Matroska, WebM, AVI and others that FFmpeg reads), through the plug-in
// libmegalith_video.so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "megalith/media/image_processor.h"

namespace megalith::media {

struct VideoInfo {
  int64_t frames = 0;     // frames of the first video stream, counted by packets where the file does not say
  double seconds = 0;     // 0: not known
  double per_second = 0;  // average rate; 0: not known
  ImageSize size;
};

// Reads what the file says; nothing is decoded. Throws a DataError that names a file that is missing, damaged or no
// video, and a ConfigError if this installation has no plug-in.
VideoInfo read_video_info(const std::filesystem::path& path);
// The same for the bytes of such a file; `name` is that in messages. They are copied, since FFmpeg reads files.
VideoInfo read_video_info(std::string_view bytes, const std::string& name);

// Decodes the frames with these numbers, which ascend and may repeat, and calls take(i, frame) for number i of the
// list, in order. As PyAV counts them: those that the decoder gives, without regard to their times. A rotation that the
// file asks for is not applied. Where the stream has fewer frames than its header says, its last one takes the place of
// the others. Throws a DataError that names the file for frames that cannot be decoded.
void read_video_frames(const std::filesystem::path& path, std::span<const int64_t> numbers,
                       const std::function<void(size_t i, Image frame)>& take);
// The same for the bytes of a file.
void read_video_frames(std::string_view bytes, const std::string& name, std::span<const int64_t> numbers,
                       const std::function<void(size_t i, Image frame)>& take);

}  // namespace megalith::media
