// Sound files by libsndfile, which reads from memory through callbacks.
#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/media/audio_internal.h"

namespace megalith::media {

namespace {

constexpr int64_t kBlock = 16384;  // samples of each channel that are read at once

// A file in memory.
struct Bytes {
  std::string_view all;
  sf_count_t at = 0;
};
Bytes& bytes_of(void* user) { return *static_cast<Bytes*>(user); }

sf_count_t size_of(void* user) { return static_cast<sf_count_t>(bytes_of(user).all.size()); }
sf_count_t seek(sf_count_t offset, int whence, void* user) {
  Bytes& bytes = bytes_of(user);
  const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? bytes.at : size_of(user);
  bytes.at = std::clamp<sf_count_t>(from + offset, 0, size_of(user));
  return bytes.at;
}
sf_count_t read(void* to, sf_count_t count, void* user) {
  Bytes& bytes = bytes_of(user);
  const sf_count_t held = std::clamp<sf_count_t>(count, 0, size_of(user) - bytes.at);
  std::memcpy(to, bytes.all.data() + bytes.at, static_cast<size_t>(held));
  bytes.at += held;
  return held;
}
sf_count_t write(const void* /*from*/, sf_count_t /*count*/, void* /*user*/) { return 0; }
sf_count_t tell(void* user) { return bytes_of(user).at; }

struct Close {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

// An open file; `bytes` must outlive it.
struct OpenSound {
  std::unique_ptr<SNDFILE, Close> file;
  SoundHeader header;
};
OpenSound open_sound(Bytes& bytes, const std::string& name) {
  SF_VIRTUAL_IO calls{size_of, seek, read, write, tell};
  SF_INFO info{};
  OpenSound sound;
  sound.file.reset(sf_open_virtual(&calls, SFM_READ, &info, &bytes));
  check<DataError>(sound.file != nullptr,
                   "{}: not a sound file that can be read ({}). Convert it: ffmpeg -i IN -c:a pcm_s16le OUT.wav", name,
                   sf_strerror(nullptr));
  sound.header = {info.samplerate, info.channels, info.frames};
  check_sound_header(sound.header, name);
  return sound;
}

}  // namespace

bool has_sndfile() { return true; }

SoundHeader read_sndfile_header(std::string_view bytes, const std::string& name) {
  Bytes in{bytes};
  return open_sound(in, name).header;
}

Sound decode_sndfile(std::string_view bytes, const std::string& name) {
  Bytes in{bytes};
  const OpenSound open = open_sound(in, name);
  Sound sound{.rate = open.header.rate};
  std::vector<float> block(static_cast<size_t>(kBlock * open.header.channels));
  while (const sf_count_t read = sf_readf_float(open.file.get(), block.data(), kBlock)) {
    for (int64_t i = 0; i < read * open.header.channels; ++i)
      if (!std::isfinite(block[static_cast<size_t>(i)])) refuse_damaged_sound(name, "a sample is not a number");
    append_mean(block.data(), read, open.header.channels, sound.samples);
    if (std::ssize(sound.samples) > open.header.samples) break;
  }
  // The number of tokens was computed from the header.
  if (std::ssize(sound.samples) != open.header.samples)
    refuse_damaged_sound(name, "it has another number of samples than its header says; the file was cut off");
  return sound;
}

}  // namespace megalith::media
