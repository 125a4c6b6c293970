// ReferenceModel: a decoder-only model in plain ATen operations, written as Hugging Face's library writes it (a batch,
// a mask, the full matrix of scores, every expert for every token, the delta rule token by token), with autograd doing
// the rest. It shares no code with ops, nn and model, and is itself checked against the golden models: what sharded
// code is compared with.
//
// Legend: b sequences of a batch, s tokens of a row, l layers, h hidden, v vocabulary.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/reference_config.h"

namespace megalith::testing {

// Beside the ids. Undefined and empty: every row is one sequence.
struct ReferenceInput {
  at::Tensor position_ids;          // int64 [b, s]; undefined: counted within each sequence
  std::vector<int64_t> cu_seqlens;  // sequences of a row, all rows alike: starts with 0, ends with s
};

struct ReferenceOutput {
  at::Tensor logits;                      // [b, s, v]
  std::vector<at::Tensor> mtp_logits;     // [b, s, v] of each prediction layer: of the token 2, 3, … places ahead
  std::vector<at::Tensor> hidden_states;  // l+1 of [b, s, h]: embedding, layers; the last follows the final norm
  // The smallest gap of any choice of experts: a model that rounds may choose otherwise where it is tiny.
  double router_margin = std::numeric_limits<double>::infinity();
};

class ReferenceModel {
 public:
  // Throws DataError when the folder lacks a tensor or has one of another shape.
  static ReferenceModel from_folder(const std::filesystem::path& folder, const std::string& config = "config.json");
  // Weights of any size matter: norms differ from 1, biases from 0.
  static ReferenceModel random(const ReferenceConfig& config, uint64_t seed);

  const ReferenceConfig& config() const { return config_; }
  // fp32 leaves that require gradients, by their names in the checkpoint. A tied head is not among them, and neither
  // are the routers' biases, which are not trained.
  const std::map<std::string, at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& parameter(const std::string& name) const;
  at::Tensor grad(const std::string& name) const;  // zeros where there is none
  void zero_grad() const;
  double grad_norm() const;  // L2 over all parameters
  // The same weights in another dtype, leaves of their own. fp64: a model without rounding to speak of.
  ReferenceModel to(at::ScalarType dtype) const;

  ReferenceOutput forward(const at::Tensor& input_ids, const ReferenceInput& input = {}) const;

  // Writes config.json and model.safetensors.
  void save(const std::filesystem::path& folder) const;

 private:
  ReferenceModel(ReferenceConfig config, const std::map<std::string, at::Tensor>& tensors);

  ReferenceConfig config_;
  std::map<std::string, at::Tensor> tensors_, parameters_;  // all, and those that are trained
};

// The tensors of a checkpoint and their shapes; which of them are not trained; and how they are drawn.
std::vector<std::pair<std::string, std::vector<int64_t>>> reference_tensors(const ReferenceConfig& config);
bool is_reference_buffer(const std::string& name);
at::Tensor reference_random_weight(const std::string& name, const std::vector<int64_t>& shape,
                                   const ReferenceConfig& config, at::Generator& generator);

// logits [b, s, v], labels int64 [b, s] beside their tokens -> [b, s]: entry t is the cross entropy of labels[t+1], 0
// where that is -100 and at the end of each sequence. With smoothing s: (1-s)·nll - s·mean log p.
at::Tensor reference_token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                  const std::vector<int64_t>& cu_seqlens = {}, double smoothing = 0);
// How many of those are not ignored.
int64_t reference_label_count(const at::Tensor& labels, const std::vector<int64_t>& cu_seqlens = {});

}  // namespace megalith::testing
