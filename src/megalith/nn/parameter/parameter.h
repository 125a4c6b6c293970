// Parameter: a trained tensor of this rank. Its three parts have different owners: the spec belongs to its layer, the
// gradient slot to the gradient buffers and the schedule, the attachments to peft and fp8. Layers create their
// parameters through ParameterScope.
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

#include "megalith/ops/attention/attention.h"
#include "megalith/ops/gemm/gemm.h"
#include "megalith/ops/kernel/grad_target.h"
#include "megalith/ops/quantize/quantized.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::nn {

struct QuantizedValue;
struct Fp8History;
struct Fp8Value;
struct LowRank;
class WeightGradQueue;

// The initial distribution of a weight. Random numbers are counter-based (init.h): every layout gets the same full
// weight.
struct Init {
  // kNormal is N(0, std²); kUniform is uniform in [-std, std).
  enum class Kind { kZeros, kOnes, kNormal, kUniform } kind = Kind::kZeros;
  double std = 0;  // for kUniform: the bound on both sides of 0
  // One function per kind.
  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes, 0}; }
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
};

// How a layer uses a parameter; determines the form of its low-rank update (low_rank.h).
enum class WeightUse {
  kOther,          // norms, biases, convolutions: cannot have an update
  kColumn,         // y = x Wᵀ with the outputs split over tp
  kRow,            // y = x Wᵀ with the inputs split over tp; partial products are summed
  kReplicated,     // whole on every rank
  kRouter,         // replicated, and not matched by `lora_target: all`
  kLookup,         // rows are looked up: the embedding
  kGroupedColumn,  // stacked experts, outputs split over etp
  kGroupedRow,     // stacked experts, inputs split over etp; the dispatcher sums the partial products
};

// One global tensor inside a parameter, and the rectangle of it that this rank holds. A parameter that fuses several
// (query | key | value; gate | up) lists them in the order of their rows.
struct ParameterPart {
  std::string name;                   // relative to the scope, "q.weight"; after ParameterScope::add the full name
  std::vector<int64_t> global_shape;  // without padding
  std::vector<int64_t> offset;        // first element of the rectangle, per dimension
  std::vector<int64_t> extent;        // sizes of the rectangle, clipped to the global shape: padding lies outside
  int64_t row = 0;                    // first row of the rectangle in this rank's parameter
};

// The role of a parameter in its model.
enum class ParameterRole {
  kWeight,    // an ordinary weight of the model
  kTied,      // the first stage's tied embedding, of which the last stage holds a copy
  kTiedCopy,  // that copy of the last stage: not counted in norms, not exported
  kAdapter,   // part of a low-rank update, not of the model
  kBuffer,    // not trained: no gradient, no optimizer state; kept in fp32 (a router's bias)
};

// The declaration of a parameter by its layer. Never changes afterwards.
struct ParameterSpec {
  std::string name;                  // relative to the scope; in a Parameter "layers.3.attention.qkv.weight", where
                                     // layers are counted over the whole model
  std::vector<ParameterPart> parts;  // empty for a parameter that is one whole tensor
  Init init;
  WeightUse use = WeightUse::kOther;
  ParameterRole role = ParameterRole::kWeight;
  std::optional<at::ScalarType> dtype;  // dtype of the value; nullopt = that of the set
  bool split_over_tp = false;           // tp ranks hold different rows or columns; otherwise all hold the same
  bool partial_grad_over_tp = false;    // replicated, but each tp rank's gradient covers only its tokens or heads: must
                                        // be summed over tp (etp for experts) before use
  bool equal_grad_over_tp = false;      // replicated over several tp ranks, each of which computes the whole gradient:
                                        // only identical arithmetic keeps the copies equal
  bool is_embedding_or_head = false;    // for the decoupled learning rate
  bool expert = false;  // gradient is reduced over the expert-data-parallel group instead of the data-parallel one;
                        // also set for adapters of experts
  int replica = 0;      // 0 on the rank that writes it to files; the tp rank if it is replicated

  // Whether both the first and the last stage hold a copy.
  bool tied_over_stages() const { return role == ParameterRole::kTied || role == ParameterRole::kTiedCopy; }
  // Returns how to choose the kernels of the products with this weight and of its gradient.
  ops::KernelChoice kernel_choice() const {
    return equal_grad_over_tp ? ops::KernelChoice::kFixed : ops::KernelChoice::kByTime;
  }
};

// The destination of a parameter's gradient. Attached by the gradient buffers of data parallelism (main_grad) and by
// the schedule (queue); layers write through it.
//
// Protocol: `main_grad`, if attached, is the fp32 tensor in which the gradient accumulates over micro-batches. Layers
// with large gradients (linear, embedding) write into it directly and return no gradient to autograd. Autograd's
// accumulation node still runs once all uses of the parameter have finished; its hooks thereby report that the gradient
// is complete. Other gradients reach value.grad() as usual, and the owner of main_grad moves them over in such a hook.
struct GradientSlot {
  at::Tensor main_grad;              // fp32, with the shape of the value; undefined if not attached
  bool stale = false;                // the next write to main_grad overwrites (beta 0) instead of adding
  WeightGradQueue* queue = nullptr;  // takes work on main_grad that a schedule defers; may be nullptr

  // Whether that work must go to `queue` now.
  bool defers() const;
  // Whether main_grad lacks work: some waits in `queue`, or may be left there by the pass that is being recorded.
  bool incomplete() const;
  // Either runs `work` on main_grad now and returns its result, or leaves it in `queue` and returns undefined.
  at::Tensor now_or_later(std::function<at::Tensor()> work);
  // Returns main_grad in the form taken by operations that write a small gradient themselves.
  ops::GradTarget target() { return {main_grad, &stale}; }
};

// Objects that other modules attach to a parameter besides its gradient; nullptr if there are none.
struct Attachments {
  LowRank* update = nullptr;        // low-rank update that the layer adds to the weight (low_rank.h); set by peft
  std::shared_ptr<Fp8History> fp8;  // history of the delayed recipe (fp8_history.h); set by linear layers
  bool in_fp8 = false;              // the layer multiplies the weight in fp8 (attach_fp8)
  bool grouped_fp8 = false;         // the same for experts, with a scale per row (moe/grouped_product.h)
  std::shared_ptr<Fp8Value> bytes;  // `value` is kept in fp8 (fp8_value.h); set by the gradient buffers
  // The weight is kept in 4 or 8 bits, and `value` stands for it without memory (quantized_value.h); set by
  // ParameterScope.
  std::shared_ptr<QuantizedValue> quantized;
};

// One tensor with the three parts above. Layers keep a pointer to it; it lives as long as its ParameterSet.
struct Parameter {
  explicit Parameter(ParameterSpec s, at::Tensor v = {}) : spec(std::move(s)), value(std::move(v)) {}

  const ParameterSpec spec;
  at::Tensor value;  // autograd leaf; the data-parallel buffers make it a view into theirs
  GradientSlot grad;
  Attachments attached;
  ops::GemmPlans* plans = nullptr;  // owned by its set; nullptr if none are kept

  // Returns the kernels for the products with this weight and for its gradient.
  ops::GemmKernels kernels() const { return {spec.kernel_choice(), plans}; }
  // Computes dyᵀ·x [out, in] from dy [t, out] and x [t, in]. If main_grad is attached, adds the result to it and
  // returns undefined; otherwise returns it in the dtype of value.
  at::Tensor add_weight_grad(const at::Tensor& dy, const at::Tensor& x);
  // Returns this rank's shards of the tensors in this parameter: views into value (or into another tensor of its shape,
  // such as an optimizer moment).
  std::vector<parallel::ShardedTensor> sharded() const { return sharded(value); }
  std::vector<parallel::ShardedTensor> sharded(const at::Tensor& like_value) const;
};

// All parameters of a model chunk in the order of the forward pass and, on CUDA, the plans of their products and of
// attention. Addresses of parameters are stable.
class ParameterSet {
 public:
  // With at::kMeta nothing is allocated: names and shapes of a model of any size are available at no cost. With
  // `quantization`, linear weights of layers are kept in 4 or 8 bits (quantized_value.h).
  ParameterSet(at::ScalarType dtype, at::Device device, const std::optional<ops::QuantizedFormat>& quantization = {})
      : plans_(device.is_cuda() ? ops::make_gemm_plans() : nullptr),
        attention_plans_(device.is_cuda() ? ops::make_attention_plans() : nullptr),
        dtype_(dtype),
        device_(device),
        quantization_(quantization) {}

  // In the order in which layers added them.
  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  Parameter* find(std::string_view name) const;  // nullptr if there is none
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  int64_t numel() const;  // elements held on this rank

 private:
  friend class ParameterScope;
  std::unique_ptr<ops::GemmPlans> plans_;
  std::unique_ptr<ops::AttentionPlans> attention_plans_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  at::ScalarType dtype_;
  at::Device device_;
  std::optional<ops::QuantizedFormat> quantization_;
};

// A node in the tree of parameter names. Copies are cheap; the set outlives it.
class ParameterScope {
 public:
  explicit ParameterScope(ParameterSet& set) : set_(&set) {}
  // Returns the scope "prefix.name".
  ParameterScope child(std::string_view name) const;

  // Adds a parameter and allocates its tensor of `shape` without filling it. Names in `spec` are relative to this
  // scope.
  Parameter& add(ParameterSpec spec, std::vector<int64_t> shape) const;

  // The plans for attention of layers with these parameters, owned by their set; nullptr if none are kept.
  ops::AttentionPlans* attention_plans() const { return set_->attention_plans_.get(); }

 private:
  std::string full(std::string_view name) const;
  ParameterSet* set_;
  std::string prefix_;
};

}  // namespace megalith::nn
