// Replaces audio_sndfile.cc in a build without libsndfile.
#include "megalith/base/error.h"
#include "megalith/media/audio_internal.h"

namespace megalith::media {

namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw ConfigError(name +
                    ": this build reads WAV files alone, because libsndfile was missing. Install libsndfile1-dev and"
                    " build again, or convert the file: ffmpeg -i IN -c:a pcm_s16le OUT.wav");
}

}  // namespace

bool has_sndfile() { return false; }
SoundHeader read_sndfile_header(std::string_view /*bytes*/, const std::string& name) { refuse(name); }
Sound decode_sndfile(std::string_view /*bytes*/, const std::string& name) { refuse(name); }

}  // namespace megalith::media
