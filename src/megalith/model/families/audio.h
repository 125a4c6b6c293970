// Audio towers in files: the part of config.json that describes one, and the names of its tensors.
#pragma once

#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/io/json_reader.h"
#include "megalith/nn/audio/audio_shape.h"

namespace megalith::model {

// Reads the keys of a tower. Throws DataError for missing or mistyped keys, ConfigError for sizes that do not fit
// together.
nn::AudioShape read_audio(const io::JsonFields& audio);

// Returns the rules for the tensors of a tower, which files name `prefix` + "layers.0.fc1.weight" and so on. Ours start
// with "audio.".
std::vector<hf::NameRule> audio_rules(const nn::AudioShape& shape, const std::string& prefix);

}  // namespace megalith::model
