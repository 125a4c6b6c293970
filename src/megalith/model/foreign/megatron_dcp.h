// Megatron-Core's distributed checkpoints (--ckpt-format torch_dist).
#pragma once

#include <map>

#include "megalith/hf/foreign/dcp_folder.h"
#include "megalith/model/foreign/megatron_model.h"

namespace megalith::model {

// Returns whether the tensors of a folder have the names of Megatron-Core.
bool has_megatron_names(const hf::DcpFolder& folder);

// Layers are stacked in a first dimension, decoder.layers.mlp.linear_fc2.weight [layers, …], or apart,
// decoder.layers.7.mlp.linear_fc2.weight. Experts likewise:
// decoder.layers.mlp.experts.experts.linear_fc1.weight [layers, experts, …].
// `folder` outlives the object.
class MegatronDcp : public MegatronModel {
 public:
  explicit MegatronDcp(const hf::DcpFolder& folder);
  // Reads tensors whose names are `prefix` and then those of weights, as if they were the weights: one kind of state of
  // an optimizer.
  MegatronDcp(const hf::DcpFolder& folder, const std::string& prefix);

  std::vector<std::string> names() const override;
  bool has(const std::string& name) const override { return places_.contains(name); }
  at::ScalarType dtype(const std::string& name) const override;
  std::string problem(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const override;
  at::Tensor whole(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const override;
  std::vector<std::string> unread_arguments() const override { return unread_; }
  int64_t optimizer_tensors() const override { return optimizer_tensors_; }

 private:
  // The place of a tensor: one or, for gate and up that are kept apart, two tensors of the folder at the same index.
  struct Place {
    std::vector<std::string> stored;
    std::vector<int64_t> index;  // in the first dimensions
  };
  void add(const std::string& stored, std::string name, const hf::DcpTensor& tensor);
  std::vector<int64_t> shape_of(const Place& place) const;

  const hf::DcpFolder& folder_;
  std::vector<std::string> unread_;
  std::map<std::string, Place> places_;
  int64_t optimizer_tensors_ = 0;
};

}  // namespace megalith::model
