// WAV files: a list of chunks, of which "fmt " says how the samples in "data" are stored.
//
//   RIFF size WAVE | fmt_ size: tag, channels, rate, bytes/s, bytes/frame, bits, … | data size: samples | …
//
// Programs that write to a pipe do not know the size of the data: it is 0 or 2^32 - 1 then, and the data reach to the
// end of the file.
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/audio_internal.h"

namespace megalith::media {

namespace {

constexpr size_t kRiffBytes = 12, kChunkBytes = 8, kFormatBytes = 16, kExtensibleBytes = 26;
constexpr uint32_t kUnknownSize = 0xFFFFFFFF;
// Tags of "fmt ".
constexpr int64_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

// An integer, least significant byte first.
template <typename Integer>
Integer little_endian(const char* at) {
  std::make_unsigned_t<Integer> value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i)
    value = static_cast<decltype(value)>(value | (static_cast<uint64_t>(static_cast<uint8_t>(at[i])) << (8 * i)));
  return static_cast<Integer>(value);
}

// How samples are stored.
struct WavFormat {
  int64_t tag = 0;
  int64_t bits = 0;
  SoundHeader header;
  std::string_view data;  // whole samples of all channels
};

void read_format(std::string_view chunk, const std::string& name, WavFormat& format) {
  if (chunk.size() < kFormatBytes) refuse_damaged_sound(name, "its format is cut off");
  format.tag = little_endian<uint16_t>(chunk.data());
  format.header.channels = little_endian<uint16_t>(chunk.data() + 2);
  format.header.rate = little_endian<uint32_t>(chunk.data() + 4);
  format.bits = little_endian<uint16_t>(chunk.data() + 14);
  // The tag proper begins the identifier of the extended form.
  if (format.tag == kExtensible && chunk.size() >= kExtensibleBytes)
    format.tag = little_endian<uint16_t>(chunk.data() + 24);
  const bool pcm =
      format.tag == kPcm && (format.bits == 8 || format.bits == 16 || format.bits == 24 || format.bits == 32);
  const bool floating = format.tag == kFloat && (format.bits == 32 || format.bits == 64);
  check<DataError>(pcm || floating,
                   "{}: a WAV file of format {} with {} bits; PCM of 8, 16, 24 and 32 bits and floating point of 32 and"
                   " 64 can be read. Convert it: ffmpeg -i IN -c:a pcm_s16le OUT.wav",
                   name, format.tag, format.bits);
}

WavFormat read_wav(std::string_view bytes, const std::string& name) {
  WavFormat format;
  bool described = false;
  for (size_t at = kRiffBytes; at + kChunkBytes <= bytes.size();) {
    const std::string_view kind = bytes.substr(at, 4);
    const auto size = little_endian<uint32_t>(bytes.data() + at + 4);
    const std::string_view rest = bytes.substr(at + kChunkBytes);
    if (kind == "fmt ") {
      read_format(rest.substr(0, std::min<size_t>(size, rest.size())), name, format);
      described = true;
    } else if (kind == "data") {
      if (!described) refuse_damaged_sound(name, "its samples come before their format");
      const bool to_the_end = size == kUnknownSize || size == 0;
      if (!to_the_end && size > rest.size()) refuse_damaged_sound(name, "it ends early; the file was cut off");
      const auto frame_bytes = static_cast<size_t>(std::max<int64_t>(1, format.header.channels) * format.bits / 8);
      const size_t held = to_the_end ? rest.size() : size;
      format.data = rest.substr(0, held / frame_bytes * frame_bytes);
      format.header.samples = static_cast<int64_t>(held / frame_bytes);
      check_sound_header(format.header, name);
      return format;
    }
    at += kChunkBytes + size + size % 2;  // chunks begin at even places
  }
  refuse_damaged_sound(name, "it has no samples");
}

float sample(const char* at, const WavFormat& format) {
  if (format.tag == kFloat) {
    return format.bits == 32 ? std::bit_cast<float>(little_endian<uint32_t>(at))
                             : static_cast<float>(std::bit_cast<double>(little_endian<uint64_t>(at)));
  }
  switch (format.bits) {
    case 8:  // the only unsigned one
      return static_cast<float>(static_cast<int>(static_cast<uint8_t>(*at)) - 128) / 128.0F;
    case 16:
      return static_cast<float>(little_endian<int16_t>(at)) / 32768.0F;
    case 24:
      return static_cast<float>(little_endian<uint16_t>(at) | static_cast<int8_t>(at[2]) * 65536) / 8388608.0F;
    default:
      return static_cast<float>(little_endian<int32_t>(at)) / 2147483648.0F;
  }
}

}  // namespace

bool is_wav(std::string_view bytes) {
  return bytes.size() >= kRiffBytes && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WAVE";
}

SoundHeader read_wav_header(std::string_view bytes, const std::string& name) { return read_wav(bytes, name).header; }

Sound decode_wav(std::string_view bytes, const std::string& name) {
  const WavFormat format = read_wav(bytes, name);
  Sound sound{.rate = format.header.rate};
  sound.samples.reserve(static_cast<size_t>(format.header.samples));
  const int64_t channels = format.header.channels, each = format.bits / 8;
  std::vector<float> frame(static_cast<size_t>(channels));
  const char* at = format.data.data();
  for (int64_t i = 0; i < format.header.samples; ++i) {
    for (float& value : frame) {
      value = sample(at, format);
      if (!std::isfinite(value)) refuse_damaged_sound(name, fmt::format("sample {} is not a number", i));
      at += each;
    }
    append_mean(frame.data(), 1, channels, sound.samples);
  }
  return sound;
}

}  // namespace megalith::media
