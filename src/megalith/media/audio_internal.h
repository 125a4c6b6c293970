// The readers of one kind of files each.
#pragma once

#include <string>
#include <string_view>

#include "megalith/media/audio.h"

namespace megalith::media {

// Whether the bytes begin as a WAV file does.
bool is_wav(std::string_view bytes);
SoundHeader read_wav_header(std::string_view bytes, const std::string& name);
Sound decode_wav(std::string_view bytes, const std::string& name);

// Everything that libsndfile knows. Without the library, both throw ConfigError.
bool has_sndfile();
SoundHeader read_sndfile_header(std::string_view bytes, const std::string& name);
Sound decode_sndfile(std::string_view bytes, const std::string& name);

// Throws DataError for numbers beyond the limits of audio.h, and for a sound without samples.
void check_sound_header(const SoundHeader& header, const std::string& name);
// Throws DataError: "speech.wav: a damaged sound file: <problem>".
[[noreturn]] void refuse_damaged_sound(const std::string& name, std::string_view problem);

// Appends the mean over the channels of interleaved samples.
void append_mean(const float* interleaved, int64_t samples, int64_t channels, std::vector<float>& to);

}  // namespace megalith::media
