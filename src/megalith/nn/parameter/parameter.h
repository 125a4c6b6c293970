// Parameter: a trained tensor of this rank, with what the optimizer, checkpoints and Hugging Face files need to know
// about it. ParameterScope: how layers make theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/ops/gemm/product.h"
#include "megalith/ops/kernel/grad_target.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::nn {

struct Fp8History;
struct LowRank;
class WeightGradQueue;

// How a fresh weight is drawn. Random numbers are counter-based (init.h): the same full weight for every layout.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kUniform } kind = Kind::kZeros;
  double std = 0;  // kUniform: the bound on both sides of 0
  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
};

// What a layer does with a parameter: which form an update of low rank (low_rank.h) takes there.
enum class WeightUse {
  kOther,          // norms, biases, convolutions: no such update
  kColumn,         // y = x Wᵀ with the outputs split over tp
  kRow,            // with the inputs split, and summed
  kReplicated,     // whole on every rank
  kRouter,         // the same, and part of no "all": a model's own choice of experts
  kLookup,         // rows are looked up: the embedding
  kGroupedColumn,  // experts, one below the other; outputs split over etp
  kGroupedRow,     // inputs split, the sum is left to whoever gathers the experts' results
};

// One global tensor inside a parameter and the rectangle of it that this rank holds. A parameter that fuses several
// (query | key | value; gate | up) lists them in the order of their rows.
struct ParameterPart {
  std::string name;                   // within the scope: "q.weight"; after ParameterScope::add the full name
  std::vector<int64_t> global_shape;  // without padding
  std::vector<int64_t> offset;        // of the rectangle
  std::vector<int64_t> extent;        // of the rectangle; clipped to the global shape: padding lies outside
  int64_t row = 0;                    // where it starts in dimension 0 of the parameter
};

// Gradient protocol. `main_grad`, when attached (by the gradient buffers of data parallelism), is the fp32 place where
// this parameter's gradient accumulates over micro-batches. Layers with big gradients (linear, embedding) write into it
// directly and return no gradient to autograd; autograd's accumulation node runs all the same once all uses of
// the parameter are through, which is when its hooks tell that the gradient is complete. Other gradients reach
// value.grad() as usual, and whoever attached main_grad moves them over in such a hook.
struct Parameter {
  std::string name;                  // "layers.3.attention.qkv.weight"; layers are counted over the whole model
  at::Tensor value;                  // leaf
  at::Tensor main_grad;              // fp32, shape of value; undefined: not attached
  bool main_grad_is_stale = false;   // the next write overwrites (beta 0) in place of adding
  WeightGradQueue* queue = nullptr;  // where linear layers may leave the work on main_grad for later; nullptr: never
  LowRank* update = nullptr;         // what the layer adds to this weight (low_rank.h); nullptr: nothing
  std::shared_ptr<Fp8History> fp8;   // of the delayed recipe (fp8_history.h); nullptr: none
  std::vector<ParameterPart> parts;
  Init init;
  WeightUse use = WeightUse::kOther;
  std::optional<at::ScalarType> dtype;  // of value; nothing: that of the set
  bool adapter = false;                 // part of an update, not of the model
  bool split_over_tp = false;           // tp ranks hold different rows or columns; otherwise all hold the same
  bool partial_grad_over_tp = false;  // replicated, but each tp rank's gradient covers only its tokens or heads: to be
                                      // summed over tp (of an expert: over etp) before it is used
  bool equal_grad_over_tp = false;    // replicated over several tp ranks, each of which computes the whole gradient:
                                      // nothing but equal arithmetic keeps the copies equal
  bool is_embedding_or_head = false;  // for the decoupled learning rate
  bool expert = false;                // reduced over the expert-data-parallel group in place of the data-parallel one
  bool tied_over_stages = false;      // a tied embedding of which the first and the last stage hold a copy each
  bool buffer = false;                // not trained: no gradient, no optimizer state; kept in fp32 (a router's bias)
  bool shared_copy = false;           // last stage's copy of a tied embedding: not counted in norms, not exported
  int replica = 0;                    // 0 on the rank that writes it to files: the tp rank where it is replicated

  // dyᵀ·x [out, in] (dy [t, out], x [t, in]): added to main_grad when that is attached, and then undefined is returned;
  // otherwise the gradient in the dtype of value.
  at::Tensor add_weight_grad(const at::Tensor& dy, const at::Tensor& x);
  // How kernels of the products with this weight, and of its gradient, are chosen.
  ops::KernelChoice kernels() const {
    return equal_grad_over_tp ? ops::KernelChoice::kFixed : ops::KernelChoice::kByTime;
  }
  // main_grad as operations take it that write a small gradient themselves.
  ops::GradTarget target() { return {main_grad, &main_grad_is_stale}; }
  // Does `work` on main_grad now and gives what it returns, or leaves it in `queue` and gives undefined.
  at::Tensor now_or_later(std::function<at::Tensor()> work);
  // Whether such work has to go to `queue` now.
  bool defers_weight_grad() const;
  // The tensors in here as this rank holds them: views into value (or into another tensor of its shape, such as an
  // optimizer moment).
  std::vector<parallel::ShardedTensor> sharded() const { return sharded(value); }
  std::vector<parallel::ShardedTensor> sharded(const at::Tensor& like_value) const;
};

// All parameters of a model chunk, in the order of the forward pass. Addresses are stable.
class ParameterSet {
 public:
  // With at::kMeta nothing is allocated: to know names and shapes of a model of any size.
  ParameterSet(at::ScalarType dtype, at::Device device) : dtype_(dtype), device_(device) {}

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  Parameter* find(std::string_view name) const;  // nullptr: none
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  int64_t numel() const;  // elements held on this rank

 private:
  friend class ParameterScope;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  at::ScalarType dtype_;
  at::Device device_;
};

// A place in the tree of names. Copies are cheap; the set outlives it.
class ParameterScope {
 public:
  explicit ParameterScope(ParameterSet& set) : set_(&set) {}
  ParameterScope child(std::string_view name) const;

  // Allocates (does not fill) a tensor of `shape`. `spec` carries everything but the value; its name and the names of
  // its parts are relative to this scope. No parts: one part, the whole.
  Parameter& add(Parameter spec, std::vector<int64_t> shape) const;

 private:
  std::string full(std::string_view name) const;
  ParameterSet* set_;
  std::string prefix_;
};

}  // namespace megalith::nn
