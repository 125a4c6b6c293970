// FootprintScope: how footprints declare the parameters of their layers.
//
// It is the counterpart of ParameterScope: the constructor of a footprint makes the same calls in the same order as its
// layer, with sizes instead of tensors. A test compares both lists for every family and several layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/nn/footprint/rank_sizes.h"

namespace megalith::nn {

// Operations of one step of the Newton-Schulz iteration (ops/update/newton_schulz.h) over all matrices of a parameter;
// zeros if it has none (matrix.h).
struct MatrixWork {
  double blocks = 0;  // over the blocks that this rank holds
  double whole = 0;   // over whole matrices
  double shared = 0;  // over whole matrices, as far as a rank does it if tensor-parallel ranks share the products
  bool any() const { return blocks > 0; }
  MatrixWork& operator+=(const MatrixWork& more);
  bool operator==(const MatrixWork&) const = default;

  // Returns the work of `count` matrices of which each rank holds [rows, columns]: a block of the rows of `ranks` ranks
  // (column-parallel layers), of their columns (row-parallel layers), or with one rank the whole.
  static MatrixWork of_rows(int64_t rows, int64_t columns, int64_t ranks, int64_t count = 1);
  static MatrixWork of_columns(int64_t rows, int64_t columns, int64_t ranks, int64_t count = 1);
};

// Whether the parameter or the scope of this name is in a layer of the model: "layers.3.…". Linear weights elsewhere
// (the head, towers, multi-token prediction) are not kept in 4 or 8 bits.
bool is_in_layer(std::string_view name);

// One parameter on one rank.
struct ParameterSize {
  int64_t numel = 0;           // elements on this rank
  bool expert = false;         // reduced over expert-data-parallel ranks
  bool own_bucket = false;     // a tied embedding of which two stages hold a copy each
  bool buffer = false;         // not trained, fp32
  bool adapter = false;        // part of a low-rank update: fp32
  bool trained = true;         // has a gradient
  bool in_fp8 = false;         // its products are in fp8
  MatrixWork matrices{};       // for Muon
  int64_t quantized_rows = 0;  // rows of a weight that is kept in 4 or 8 bits (RankSizes::quantization); otherwise 0
  bool operator==(const ParameterSize&) const = default;
};

// The low-rank update W + s·B·A (parameter/low_rank.h) of one weight; for experts, the sum over all experts of a rank.
struct UpdateSize {
  int64_t a = 0, b = 0;                    // elements
  int64_t hidden = 0;                      // columns of x·Aᵀ (of one expert); 0 if the weight has no update
  bool any() const { return hidden > 0; }  // whether the weight has an update
  // With weight decomposition (dora_product.cc), otherwise 0: elements of the magnitudes, outputs of the layer, outputs
  // of its largest tensor with an update, and elements of the sums of weight and update that exist at once.
  int64_t magnitudes = 0, outputs = 0, largest_part = 0, norm_block = 0;
};

// One tensor of a fused weight: its full name (Megalith's, without ".weight") and its rows on this rank.
struct UpdatedPart {
  std::string name;
  int64_t rows = 0;
};

// Decides which weights get an update; implemented in peft/adapter_sizes.h.
class UpdateSizes {
 public:
  virtual ~UpdateSizes() = default;
  // `inputs` are the columns of the weight on this rank, `copies` the number of experts that have such a weight each.
  virtual UpdateSize of(const std::vector<UpdatedPart>& parts, int64_t inputs, int64_t copies) const = 0;
  // Whether the weight of a norm or a router (its full name) is trained as a whole.
  virtual bool trains_whole(const std::string& /*weight*/) const { return false; }
  // Whether the bias of one of these weights or norms is trained beside the updates.
  virtual bool trains_bias(const std::vector<UpdatedPart>& parts) const = 0;
};

// The parameters of a part of a model. Those of low-rank updates come after all others.
struct ParameterSizes {
  std::vector<ParameterSize> weights, updates;
};

// A node in the tree of parameter names. Copies are cheap; what it refers to outlives it.
class FootprintScope {
 public:
  // Whether the weights in a scope of this name ("layers.3.mlp.", with those inside it) are trained.
  using Trains = std::function<bool(std::string_view scope)>;
  // `updates` is nullptr if weights are trained: all of them, or those for which `trains` is true.
  FootprintScope(const RankSizes& rank, const UpdateSizes* updates, ParameterSizes& to, const Trains* trains = nullptr)
      : rank_(&rank), updates_(updates), trains_(trains), to_(&to) {}
  // Returns the scope of a part named `name`, as ParameterScope::child does.
  FootprintScope child(std::string_view name) const;

  // Whether linear weights of this scope are kept in 4 or 8 bits: those of layers, below adapters.
  bool keeps_quantized() const;
  const RankSizes& rank() const { return *rank_; }  // sizes that all layers of the rank share
  // Record a parameter: with all its properties, or an ordinary weight of so many elements. It is frozen if there are
  // updates.
  void add(ParameterSize parameter) const;
  void add(int64_t numel) const { add(ParameterSize{.numel = numel}); }
  // The same for one that may be trained as a whole beside updates; `name` is relative to this scope.
  void add(ParameterSize parameter, const std::string& name) const;
  // Records the bias of a weight with these parts, whose names are relative to this scope; {{"", n}} is that of the
  // scope itself, a norm.
  void add_bias(std::vector<UpdatedPart> parts) const;
  // Records A and B of a weight's update, if it gets one. Names in `parts` are relative to this scope.
  UpdateSize add_update(std::vector<UpdatedPart> parts, int64_t inputs, int64_t copies = 1, bool expert = false) const;

 private:
  // Puts the prefix in front of the names.
  std::vector<UpdatedPart> full(std::vector<UpdatedPart> parts) const;

  const RankSizes* rank_;
  const UpdateSizes* updates_;
  const Trains* trains_;
  ParameterSizes* to_;
  std::string prefix_;
};

}  // namespace megalith::nn
