// PrincipalStarts: the start of an adapter as the principal singular parts of its weights (adapter_config.h).
//
//   PrincipalStarts starts(updates, tp, replicas, iterations);
//   starts.from_weights(seed);            // a new adapter: A0 and B0 from the weights; or
//   starts.from_files(mapping, files);    // one that continues: A0 and B0 from its files
//
// Both put A0 and B0 into the factors of the updates, and W - s·B0·A0 in place of each weight W. Factors are those of
// the whole tensors of the files, so that they do not depend on the layout: modules that are one parameter here (query,
// key and value) have one pair each, and a module that the files fuse has one for all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/hf/name_map.h"
#include "megalith/hf/weight_files.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/parameter.h"

namespace megalith::peft {

// A weight and its update, which belong to others.
struct UpdatedWeight {
  nn::Parameter* weight;
  const nn::LowRank* update;
};

// Used by one thread per rank. Parameters outlive it.
class PrincipalStarts {
 public:
  // `tp` are the ranks that split the weights, `replicas` those that hold the same. Weights are not grouped or looked
  // up, have no more rows and columns than their rank allows (check_start), and are not quantized.
  PrincipalStarts(const std::vector<UpdatedWeight>& updates, comm::Group tp, comm::Group replicas, int iterations);

  // Computes A0 and B0 from the weights. Each module is the work of one rank of tp x replicas, which share them, and
  // all of them get its numbers: decompositions on different machines may differ. Collective over both groups.
  void from_weights(uint64_t seed);
  // Reads A0 and B0. `mapping` is that of the adapter's tensors, `files` have all of them.
  void from_files(const hf::TensorMapping& mapping, const hf::WeightFiles& files);

  // A factor as it started, in host memory: of the shape of the parameter's value on this rank.
  struct Factor {
    const nn::Parameter* parameter;
    at::Tensor value;
  };
  // The factors of all updates; empty before one of the functions above.
  const std::vector<Factor>& factors() const { return factors_; }

 private:
  // One module of the files: tensors of one weight that share an A.
  struct Module {
    UpdatedWeight of;
    size_t a = 0;               // its A, among the parts of update->a
    std::vector<size_t> parts;  // indices into update->parts and the parts of update->b
    int64_t outputs = 0, inputs = 0;
    int64_t rank() const { return of.update->a->spec.parts[a].global_shape[0]; }
    double scale() const { return of.update->parts[parts[0]].scale; }
  };
  // Returns the tensor of the weight that a part of its update belongs to.
  static const nn::ParameterPart& tensor_of(const Module& module, size_t part);
  // Returns the weight of a module as a whole, fp32 [outputs, inputs], on every rank of tp.
  at::Tensor whole(const Module& module) const;
  // Computes A0 [r, i] and B0 [o, r] of up to tp x replicas modules, each on one rank.
  void decompose(const std::vector<Module>& modules, uint64_t seed) const;
  // Copies this rank's parts of A0 and B0, which are whole, into the factors, and takes their product off the weight.
  void adopt(const Module& module, const at::Tensor& a, const at::Tensor& b) const;
  void clear() const;  // sets all factors to zero: padding stays so
  void keep();         // fills factors_

  const std::vector<UpdatedWeight> updates_;
  const comm::Group tp_, replicas_;
  const int iterations_;
  std::vector<Module> modules_;
  std::vector<Factor> factors_;
};

}  // namespace megalith::peft
