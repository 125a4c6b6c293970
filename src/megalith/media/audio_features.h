// LogMel: from a sound to the frames that an audio tower takes, as Whisper's feature extractor makes them.
//
// A frame is the power of 25 ms of sound (400 samples under a Hann window) in bands of the mel scale, as logarithms:
//
//   samples ─ every 160 ─► windows of 400 ─ Fourier ─► power [201] ─ mel ─► [bins] ─ log10, floor, scale ─► [bins]
//
// Frames are those of Hugging Face's processor for a single sound: beginning and end are mirrored, and a rest of less
// than 160 samples makes no frame. (LLaMA-Factory pads to 30 seconds with silence, and cuts longer sounds; its last two
// frames differ.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::media {

// Samples per second that the frames are made from, and samples from one frame to the next.
inline constexpr int64_t kFeatureRate = 16'000;
inline constexpr int64_t kFrameHop = 160;
// Samples that a frame sees.
inline constexpr int64_t kFrameWindow = 400;

// Returns the frames of a sound with so many samples at kFeatureRate.
inline int64_t feature_frames(int64_t samples) { return samples / kFrameHop; }

// Returns the tokens of so many frames in an audio tower with chunks of `chunk` frames: an eighth of each chunk,
// rounded up.
int64_t audio_tokens(int64_t frames, int64_t chunk = 100);

// Tables for one number of bands. Immutable after construction: any number of threads may share it.
class LogMel {
 public:
  // Bands of equal width on Slaney's mel scale from 0 to 8000 Hz, each with an area of 1.
  explicit LogMel(int64_t bins = 128);

  int64_t bins() const { return bins_; }
  // Returns feature_frames(samples) frames of bins() numbers each, one after the other. `samples` are at kFeatureRate.
  std::vector<float> frames(std::span<const float> samples) const;

 private:
  // A band: the first frequency that it covers, and the weights of those from there on.
  struct Band {
    size_t first = 0;
    std::vector<double> weights;
  };
  void power(const double* window, double* out) const;  // [400] -> [201]

  int64_t bins_;
  std::vector<double> hann_;   // [400]
  std::vector<double> roots_;  // cos, -sin of 2π i / 400
  std::vector<double> inner_;  // [25][2][25]: cos and -sin of 2π b d / 25
  std::vector<Band> bands_;
};

}  // namespace megalith::media
