// Frames and sound of video files (MP4, Matroska, WebM, AVI and others that FFmpeg reads), through the plug-in
// libmegalith_video.so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "megalith/media/audio.h"
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

// Whether the bytes begin as the files do that hold both streams: MP4 and its kin, Matroska, WebM, AVI.
bool is_video_container(std::string_view bytes);

// Returns the size of a file's first stream of sound, as the file says it; std::nullopt if it has none. Throws like
// read_video_info, and a DataError for a sound beyond the limits of audio.h or of unknown length.
std::optional<SoundHeader> read_video_sound_header(const std::filesystem::path& path);
std::optional<SoundHeader> read_video_sound_header(std::string_view bytes, const std::string& name);

// Decodes that stream; channels are averaged. A stream that is longer or shorter than the file says is cut, or filled
// up with silence. Throws a DataError that names the file for a sound that is missing or damaged.
Sound decode_video_sound(const std::filesystem::path& path);
Sound decode_video_sound(std::string_view bytes, const std::string& name);

}  // namespace megalith::media
