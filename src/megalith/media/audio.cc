#include "megalith/media/audio.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/audio_internal.h"

namespace megalith::media {

bool can_decode_all_sounds() { return has_sndfile(); }

SoundHeader read_sound_header(std::string_view bytes, const std::string& name) {
  return is_wav(bytes) ? read_wav_header(bytes, name) : read_sndfile_header(bytes, name);
}

Sound decode_sound(std::string_view bytes, const std::string& name) {
  return is_wav(bytes) ? decode_wav(bytes, name) : decode_sndfile(bytes, name);
}

void check_sound_header(const SoundHeader& header, const std::string& name) {
  check<DataError>(header.rate >= kMinRate && header.rate <= kMaxRate,
                   "{}: a sound with {} samples per second; rates from {} to {} can be read", name, header.rate,
                   kMinRate, kMaxRate);
  check<DataError>(header.channels >= 1 && header.channels <= kMaxChannels,
                   "{}: a sound with {} channels; 1 to {} can be read", name, header.channels, kMaxChannels);
  check<DataError>(header.samples >= 1 && header.samples <= kMaxSamples,
                   "{}: a sound with {} samples per channel; 1 to {} can be read. Cut longer ones", name,
                   header.samples, kMaxSamples);
}

void refuse_damaged_sound(const std::string& name, std::string_view problem) {
  throw DataError(fmt::format("{}: a damaged sound file: {}", name, problem));
}

void append_mean(const float* interleaved, int64_t samples, int64_t channels, std::vector<float>& to) {
  if (channels == 1) {
    to.insert(to.end(), interleaved, interleaved + samples);
    return;
  }
  for (int64_t i = 0; i < samples; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c) sum += static_cast<double>(*interleaved++);
    to.push_back(static_cast<float>(sum / static_cast<double>(channels)));
  }
}

}  // namespace megalith::media
