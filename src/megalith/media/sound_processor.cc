#include "megalith/media/sound_processor.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"

namespace megalith::media {

namespace {

// Throws for a field that is there and has another value.
void check_field(const io::JsonFields& fields, const char* name, int64_t expected) {
  const auto found = fields.optional<int64_t>(name);
  if (found.value_or(expected) != expected) fields.refuse(name, "be " + std::to_string(expected));
}

// Files of models that only see have none of these fields.
void check_fields(const io::JsonFields& fields, const SoundProcessorSettings& settings) {
  check_field(fields, "feature_size", settings.bins);
  check_field(fields, "sampling_rate", kFeatureRate);
  check_field(fields, "hop_length", kFrameHop);
  check_field(fields, "n_fft", kFrameWindow);
}

}  // namespace

void check_feature_extractor(const std::filesystem::path& model_folder, const SoundProcessorSettings& settings) {
  const auto own = model_folder / "preprocessor_config.json";
  const auto shared = model_folder / "processor_config.json";
  if (std::filesystem::exists(own)) return check_fields(io::read_json_file(own).fields(), settings);
  if (!std::filesystem::exists(shared)) return;
  const io::JsonFile file = io::read_json_file(shared);
  if (const auto part = file.fields().optional_object("feature_extractor")) check_fields(*part, settings);
}

SoundProcessor::SoundProcessor(const SoundProcessorSettings& settings) : settings_(settings), mel_(settings.bins) {
  check(settings.chunk > 0, "chunks of {} frames", settings.chunk);
}

int64_t SoundProcessor::frames(const SoundHeader& header, const std::string& name) const {
  const int64_t count = feature_frames(resampled_length(header.samples, header.rate, kFeatureRate));
  check<DataError>(count > 0,
                   "{}: the sound has {} samples at {} per second, which is less than the 10 ms of a frame; leave out "
                   "sounds as short as that",
                   name, header.samples, header.rate);
  return count;
}

void SoundProcessor::write_frames(Sound sound, float* rows) const {
  const Sound at_rate = resample(std::move(sound), kFeatureRate);
  std::ranges::copy(mel_.frames(at_rate.samples), rows);
}

}  // namespace megalith::media
