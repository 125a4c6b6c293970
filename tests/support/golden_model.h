// The golden models: tiny checkpoints beside the numbers that Hugging Face's library computes for them. What every
// field means is said in golden/hf/README.md.
//
// Legend: b sequences of a batch, s tokens of a row, l layers, h hidden, v vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace megalith::testing {

struct GoldenModel {
  std::string name;  // name of the folder, in lower case
  std::filesystem::path folder;
  std::string model_type;
  nlohmann::json json;  // golden.json

  // The padded batch, int64 [b, s]. Labels stand beside their tokens.
  at::Tensor input_ids, attention_mask, labels;
  at::Tensor logits;         // [s, v], of the first sequence
  at::Tensor hidden_states;  // [l+1, 8, h], of its first 8 tokens; the last entry follows the final norm. May be absent
  at::Tensor token_losses;   // [b, s]: entry t is of labels[t+1]
  double loss = 0;
  int64_t num_label_tokens = 0;
  double grad_norm = 0;
  double logits_noise = 0;  // between two equivalent kernels of the library

  // Several sequences in one row, int64 [1, s].
  // Use packed_row(), which skips the test where the folder has no such row.
  struct Packed {
    at::Tensor input_ids, position_ids, labels;
    std::vector<int64_t> cu_seqlens;  // [sequences + 1]
    at::Tensor token_losses;          // [1, s]
    double loss = 0;
    int64_t num_label_tokens = 0;
    double grad_norm = 0;
  };
  Packed packed;
  const Packed& packed_row() const;

  // One tensor of the checkpoint.
  struct Gradient {
    std::string name;  // the checkpoint's
    std::vector<int64_t> shape;
    double l2 = 0, sum = 0, absmax = 0;
    double noise = 0;                 // largest difference of an element between two equivalent kernels of the library
    at::Tensor samples;               // at the flat indices golden_sample takes
    std::optional<double> packed_l2;  // L2 norm for the packed row's loss
  };
  std::vector<Gradient> gradients;
};

// All folders in golden_dir()/hf with a golden.json and a config.json, by name: those whose batches are text, and those
// with pictures or sound in them ("media" in golden.json), of which GoldenModel describes a part only.
std::vector<std::string> golden_model_names();
std::vector<std::string> golden_media_names();
// The model_type in its config.json: folders of types that are not supported hold other fields than those above.
std::string golden_model_type(const std::string& name);
// Skips the test when something is missing that no test can do without.
GoldenModel read_golden_model(const std::string& name);

// The elements of `tensor` that are kept in golden files: flat indices (7919 i) mod numel, i < min(32, numel).
at::Tensor golden_sample(const at::Tensor& tensor);

// golden_model_names() for INSTANTIATE_TEST_SUITE_P, with names that are fit for a test.
//
//   class GoldenHfThing : public ::testing::TestWithParam<std::string> {};
//   TEST_P(GoldenHfThing, forward) { const GoldenModel golden = read_golden_model(GetParam()); … }
//   INSTANTIATE_TEST_SUITE_P(hf, GoldenHfThing, ::testing::ValuesIn(golden_or_none(golden_model_names())),
//                            golden_test_name);
template <typename ParamInfo>
std::string golden_test_name(const ParamInfo& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9')) c = '_';
  return name;
}

}  // namespace megalith::testing
