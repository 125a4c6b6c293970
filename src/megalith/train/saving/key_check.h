// Reports tensors that a run and a save point do not both have, as KeyActions says.
#pragma once

#include <filesystem>
#include <string_view>

#include "megalith/model/pretrained.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// Throws DataError or, with `logs`, writes warnings; both name the first few tensors and count the rest. `part`
// completes the sentence: "weights", "optimizer state". One rank passes `logs`; all of them throw.
void apply_key_actions(const model::KeyDifference& keys, const KeyActions& actions, std::string_view part,
                       const std::filesystem::path& folder, bool logs);

}  // namespace megalith::train
