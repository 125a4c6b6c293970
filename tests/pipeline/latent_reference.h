// A small dense DeepSeek model with multi-token prediction in plain ATen operations, sequence by sequence: what
// GptModel's latent attention and prediction layers are compared with. Shares no code with nn and model.
//
// Legend: s tokens of a sequence, h hidden, v vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::testing {

struct LatentConfig {
  int64_t layers = 4, mtp = 2;
  int64_t q_rank = 8;  // 0: none
  bool tied = false;
  nlohmann::json to_json() const;
};

class LatentReference {
 public:
  LatentReference(const LatentConfig& config, uint64_t seed);

  // By their names in the checkpoint, fp64 leaves; without the copies that a checkpoint has of embedding and head.
  const std::map<std::string, at::Tensor>& parameters() const { return parameters_; }

  struct Losses {
    at::Tensor main;              // sum over the sequence
    std::vector<at::Tensor> mtp;  // the same of each depth
  };
  Losses losses(const at::Tensor& ids) const;  // int64 [s], each token predicts the next one
  // config.json and weights; `with_mtp` false: without the prediction layers, which config.json still names.
  void save(const std::filesystem::path& folder, bool with_mtp = true) const;

 private:
  at::Tensor layer(const at::Tensor& x, const std::string& name) const;
  at::Tensor attention(const at::Tensor& x, const std::string& name) const;
  at::Tensor linear(const at::Tensor& x, const std::string& name) const;
  at::Tensor norm(const at::Tensor& x, const std::string& name, double epsilon = 1e-5) const;
  at::Tensor loss(const at::Tensor& hidden, const at::Tensor& ids, int64_t ahead) const;

  LatentConfig config_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace megalith::testing
