// SoundProcessor: from a sound to the frames of a spectrogram that an audio tower takes.
//
// How many frames and tokens a sound becomes follows from the header of its file alone: every sound is brought to
// 16 kHz and keeps its whole length, as in Hugging Face's processor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "megalith/media/audio.h"
#include "megalith/media/audio_features.h"

namespace megalith::media {

// The sizes of the tower that decide its input.
struct SoundProcessorSettings {
  int64_t bins = 128;   // bands of a frame
  int64_t chunk = 100;  // frames that the tower convolves together
};

// Throws DataError if the model's preprocessor_config.json (or "feature_extractor" in processor_config.json) asks for
// other frames than a SoundProcessor makes. A folder without these files asks for none.
void check_feature_extractor(const std::filesystem::path& model_folder, const SoundProcessorSettings& settings);

// Constant after construction; may be used by several threads at once.
class SoundProcessor {
 public:
  explicit SoundProcessor(const SoundProcessorSettings& settings);

  const SoundProcessorSettings& settings() const { return settings_; }
  // The numbers in a frame, and the tokens of so many frames.
  int64_t row_width() const { return settings_.bins; }
  int64_t tokens(int64_t frames) const { return audio_tokens(frames, settings_.chunk); }

  // Returns the frames of a sound of this size. Throws DataError, naming the sound, if it is too short for one.
  int64_t frames(const SoundHeader& header, const std::string& name) const;
  // Writes the frames of a sound: frames() of row_width() numbers each.
  void write_frames(Sound sound, float* rows) const;

 private:
  SoundProcessorSettings settings_;
  LogMel mel_;
};

}  // namespace megalith::media
