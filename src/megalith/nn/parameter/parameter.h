// Parameter: a trained tensor of this rank, in parts with an owner each: the spec (its layer), the gradient slot
// (gradient buffers and schedule) and what is attached (peft, fp8). ParameterScope: how layers make theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

// What a parameter is to its model.
enum class ParameterRole {
  kWeight,    // one of the model's own
  kTied,      // a tied embedding of which the last stage holds a copy, too: the first stage's
  kTiedCopy,  // the last stage's: not counted in norms, not exported
  kAdapter,   // part of an update, not of the model
  kBuffer,    // not trained: no gradient, no optimizer state; kept in fp32 (a router's bias)
};

// What a layer says of a parameter when it adds it. Never changes afterwards.
struct ParameterSpec {
  std::string name;                  // within the scope; of a Parameter: "layers.3.attention.qkv.weight", where layers
                                     // are counted over the whole model
  std::vector<ParameterPart> parts;  // none: one, the whole
  Init init;
  WeightUse use = WeightUse::kOther;
  ParameterRole role = ParameterRole::kWeight;
  std::optional<at::ScalarType> dtype;  // of the value; nullopt: that of the set
  bool split_over_tp = false;           // tp ranks hold different rows or columns; otherwise all hold the same
  bool partial_grad_over_tp = false;  // replicated, but each tp rank's gradient covers only its tokens or heads: to be
                                      // summed over tp (of an expert: over etp) before it is used
  bool equal_grad_over_tp = false;    // replicated over several tp ranks, each of which computes the whole gradient:
                                      // nothing but equal arithmetic keeps the copies equal
  bool is_embedding_or_head = false;  // for the decoupled learning rate
  bool expert = false;  // reduced over the expert-data-parallel group in place of the data-parallel one; adapters of
                        // experts, too
  int replica = 0;      // 0 on the rank that writes it to files: the tp rank where it is replicated

  // Whether the first and the last stage hold a copy each.
  bool tied_over_stages() const { return role == ParameterRole::kTied || role == ParameterRole::kTiedCopy; }
  // How kernels of the products with this weight, and of its gradient, are chosen.
  ops::KernelChoice kernel_choice() const {
    return equal_grad_over_tp ? ops::KernelChoice::kFixed : ops::KernelChoice::kByTime;
  }
};

// Where a parameter's gradient goes. Attached by the gradient buffers of data parallelism (main_grad) and by the
// schedule (queue); layers write through it.
//
// Protocol. `main_grad`, when attached, is the fp32 place where the gradient accumulates over micro-batches. Layers
// with big gradients (linear, embedding) write into it directly and return no gradient to autograd; autograd's
// accumulation node runs all the same once all uses of the parameter have finished, which is when its hooks tell that
// the gradient is complete. Other gradients reach value.grad() as usual, and the owner of main_grad moves them over in
// such a hook.
struct GradientSlot {
  at::Tensor main_grad;              // fp32, of the value's shape; undefined: not attached
  bool stale = false;                // the next write to main_grad overwrites (beta 0) instead of adding
  WeightGradQueue* queue = nullptr;  // where layers may leave the work on main_grad for later; nullptr: never

  // Whether such work has to go to `queue` now.
  bool defers() const;
  // Does `work` on main_grad now and gives what it returns, or leaves it in `queue` and gives undefined.
  at::Tensor now_or_later(std::function<at::Tensor()> work);
  // main_grad as operations take it that write a small gradient themselves.
  ops::GradTarget target() { return {main_grad, &stale}; }
};

// What others attach to a parameter, beside its gradient.
struct Attachments {
  LowRank* update = nullptr;        // added to the weight by its layer (low_rank.h); set by peft; nullptr: nothing
  std::shared_ptr<Fp8History> fp8;  // of the delayed recipe (fp8_history.h); set by linear layers; nullptr: none
};

// One tensor with the three parts above. Layers keep a reference; it lives as long as its ParameterSet.
struct Parameter {
  explicit Parameter(ParameterSpec s, at::Tensor v = {}) : spec(std::move(s)), value(std::move(v)) {}

  const ParameterSpec spec;
  at::Tensor value;  // leaf; the buffers of data parallelism make it a view of theirs
  GradientSlot grad;
  Attachments attached;
  ops::ProductPlans* plans = nullptr;  // its set's; nullptr: none are kept

  // Kernels of the products with this weight, and of its gradient.
  ops::ProductKernels kernels() const { return {spec.kernel_choice(), plans}; }
  // dyᵀ·x [out, in] (dy [t, out], x [t, in]): added to main_grad when that is attached, and then undefined is returned;
  // otherwise the gradient in the dtype of value.
  at::Tensor add_weight_grad(const at::Tensor& dy, const at::Tensor& x);
  // The tensors in here as this rank holds them: views into value (or into another tensor of its shape, such as an
  // optimizer moment).
  std::vector<parallel::ShardedTensor> sharded() const { return sharded(value); }
  std::vector<parallel::ShardedTensor> sharded(const at::Tensor& like_value) const;
};

// All parameters of a model chunk, in the order of the forward pass, and on CUDA the plans of their products. Addresses
// are stable.
class ParameterSet {
 public:
  // With at::kMeta nothing is allocated: to know names and shapes of a model of any size.
  ParameterSet(at::ScalarType dtype, at::Device device)
      : plans_(device.is_cuda() ? ops::make_product_plans() : nullptr), dtype_(dtype), device_(device) {}

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  Parameter* find(std::string_view name) const;  // nullptr: none
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  int64_t numel() const;  // elements held on this rank

 private:
  friend class ParameterScope;
  std::unique_ptr<ops::ProductPlans> plans_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  at::ScalarType dtype_;
  at::Device device_;
};

// A place in the tree of names. Copies are cheap; the set outlives it.
class ParameterScope {
 public:
  explicit ParameterScope(ParameterSet& set) : set_(&set) {}
  ParameterScope child(std::string_view name) const;

  // Allocates (does not fill) a tensor of `shape`. The names in `spec` are relative to this scope.
  Parameter& add(ParameterSpec spec, std::vector<int64_t> shape) const;

 private:
  std::string full(std::string_view name) const;
  ParameterSet* set_;
  std::string prefix_;
};

}  // namespace megalith::nn
