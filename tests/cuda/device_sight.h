// Small models that see and hear, and records with images and sounds, for tests of the program on devices.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith::testing {

// Whether this is a family of write_sight_model: qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_5, qwen3_omni_moe.
bool sees(const std::string& family);

// Options that every run of such a family needs, on a folder of write_sight_model; empty for the others.
std::vector<std::string> sight_words(const std::string& family, const std::filesystem::path& folder);

// Why such a model cannot be trained here: the build cannot read PNG files, or has no tokenizers. Empty if it can.
std::string sight_obstacle(const std::string& family);

// Writes a Hugging Face folder with random weights and a tokenizer, and
//   data.jsonl   questions about 3, 0, 0, 0, 0, 5, 0, 0 images, then 1, 0, 0, 0, 0, 2, 0, 0, and so on: with two or
//                four micro-batches in a step, some have no image, and so has one of two data-parallel ranks
//   pairs.jsonl  preference pairs with 1, 0 or 2 images
// the same bytes each time. For qwen3_omni_moe the records also have 0, 2, 1, 0, 0, 0, 4, 1 sounds, and so on. The
// towers are those of the golden models, but with heads of the published sizes (80, 72 and, for sounds, 64 channels)
// and, with windows, an MLP whose width is not a multiple of 8. Every token goes to all experts: rounding cannot change
// a choice.
void write_sight_model(const std::string& family, const std::filesystem::path& folder);

}  // namespace megalith::testing
