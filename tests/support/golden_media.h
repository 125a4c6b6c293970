// The golden models with pictures and sound: their batches, of which read_golden_model reads a part, and prompts
// without weights whose positions are known. What every field means is said in golden/hf/README.md.
//
// Legend: b sequences of a batch, s tokens of a row, h hidden, v vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/layout/media_positions.h"

namespace megalith::testing {

// A batch: the main one, or that of the prefix "mixed.".
struct GoldenMediaBatch {
  at::Tensor input_ids, attention_mask, labels;  // int64 [b, s]
  at::Tensor position_ids;                       // [3, b, s], int64 or fp32
  at::Tensor logits;                             // [tokens of the first row, v]
  at::Tensor token_losses;                       // [b, s]
  at::Tensor image_embeds, video_embeds;         // [tokens, h]; undefined where the batch has none
  at::Tensor image_pixels, video_pixels;         // [patches, c], likewise
  at::Tensor audio_embeds;                       // [tokens, h], likewise
  at::Tensor audio_features;                     // [sounds, mel bins, frames], padded; likewise
  at::Tensor audio_lengths;                      // int64 [sounds]: frames of each
  std::vector<std::vector<layout::TokenSegment>> rows;
  double loss = 0, grad_norm = 0;
  int64_t num_label_tokens = 0;
};

// A prompt, and the positions that the library gives it; with those of the rule "largest + 1" where they differ.
struct GoldenPrompt {
  std::vector<layout::TokenSegment> segments;
  std::vector<std::vector<double>> positions;  // [3][tokens]
  double rope_delta = 0;
  bool other_rule = false;  // rope_delta is that of the library's rule, the positions are not
};

struct GoldenMedia {
  std::string name;
  std::filesystem::path folder;
  nlohmann::json config;              // config.json
  layout::PositionSettings settings;  // as config.json has them
  GoldenMediaBatch main, mixed;
  std::vector<GoldenPrompt> prompts;
};

// Media of some rows of a batch as a model takes them: images and videos in one list, in the order of their tokens, and
// sounds in another. Undefined where there are none.
struct GoldenPixels {
  at::Tensor pixels;          // [patches, c]
  at::Tensor grids;           // int64 [media, 3]
  at::Tensor visual_rows;     // int64 [rows, s]: the tower's row of each token, -1 for text
  at::Tensor audio_features;  // [frames of all sounds, mel bins]
  at::Tensor audio_lengths;   // int64 [sounds]
  at::Tensor audio_rows;      // int64 [rows, s]
};
GoldenPixels golden_pixels(const GoldenMediaBatch& batch, const std::vector<int64_t>& rows, int64_t merge);

// The folders of golden_media_names() whose batches have images and videos.
std::vector<std::string> golden_sight_names();

// Skips the test when something is missing.
GoldenMedia read_golden_media(const std::string& name);

}  // namespace megalith::testing
