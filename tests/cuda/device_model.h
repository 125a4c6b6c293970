// The small models that tests of the program on devices train, and their data.
#pragma once

#include <filesystem>
#include <string>

namespace megalith::testing {

constexpr int kDeviceRow = 32;  // the longest sample

// Writes a Hugging Face folder and data into `folder`, the same bytes each time:
//   data.jsonl   samples of different lengths, some tokens without a label; experts choose clearly on these
//   full.jsonl   samples of kDeviceRow tokens, every one with a label
//   pairs.jsonl  preference pairs
// `family` is one that parity_config() knows, or llama_wide or experts_wide, whose products fit fp8. Families of
// device_sight.h get records with images, and no full.jsonl.
void write_device_model(const std::string& family, const std::filesystem::path& folder);

}  // namespace megalith::testing
