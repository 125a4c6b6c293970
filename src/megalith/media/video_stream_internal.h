// The interface of libmegalith_video.so, which reads video files and the sound in them.
//
// It is a library of its own, opened when the first such file is: FFmpeg's libraries pull in a hundred others, and
// programs that read no videos should neither load nor need them. Only this header is shared. Errors are
// std::exception: their types come from the C++ library, which both sides share.
#pragma once

#include <cstdint>

namespace megalith::media {

// Numbers that a file gives for its first video stream.
struct VideoHeader {
  int64_t frames = 0;     // 0: not said, and not to be found out by reading the file's packets
  double seconds = 0;     // 0: not said
  double per_second = 0;  // average rate of frames; 0: not said
  int64_t width = 0;
  int64_t height = 0;
};

// The frames of one file, from the first to the last. Not thread-safe.
class VideoStream {
 public:
  virtual ~VideoStream() = default;
  virtual const VideoHeader& header() const = 0;
  // Decodes the next frame; returns false at the end.
  virtual bool next() = 0;
  // The frame's size, and its pixels as RGB, rows from top to bottom without gaps.
  virtual int64_t width() const = 0;
  virtual int64_t height() const = 0;
  virtual void copy_rgb(uint8_t* pixels) = 0;
};

// The first stream of sound in a file, from its beginning to its end. Not thread-safe.
class SoundStream {
 public:
  virtual ~SoundStream() = default;
  virtual int64_t rate() const = 0;      // samples per second
  virtual int64_t channels() const = 0;  // that are averaged
  virtual double seconds() const = 0;    // its length as the file says; 0: not said
  // Decodes the next samples; returns false at the end.
  virtual bool next() = 0;
  // Those samples, one channel, and their number.
  virtual const float* samples() const = 0;
  virtual int64_t count() const = 0;
};

// Types and names of the functions that the library exports. The numbers change with anything in this header. The
// second one returns nullptr for a file without sound.
using OpenVideoStream = VideoStream* (*)(const char* path);
constexpr const char* kOpenVideoStreamName = "megalith_open_video_stream_2";
using OpenSoundStream = SoundStream* (*)(const char* path);
constexpr const char* kOpenSoundStreamName = "megalith_open_sound_stream_2";

}  // namespace megalith::media
