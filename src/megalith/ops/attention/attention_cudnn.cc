// Attention over sequences of unequal lengths, and with windows, by cuDNN's own entry. libtorch's takes neither: its
// backward for packed sequences confuses head size and length. The library is the one that libtorch has loaded; it is
// found by its name, so that nothing has to be linked.
//
// cuDNN computes what a graph describes. Building one takes some milliseconds, so they are kept (CudnnPlans) by
// everything that they depend on (GraphKey). Packed rows differ from step to step in the number of sequences and in
// the longest one; graphs are built for the next power of two of both, and sequences beyond the real ones have no
// tokens. Where tokens begin and how many there are is read on the device, by each call.
//
// Legend: as in attention.h; b sequences of a graph, s and m its longest queries and keys.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <ATen/ATen.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/attention/attention_internal.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/kernel/tensor_internal.h"

// The front end finds cuDNN's functions through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace megalith::ops {

namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;

// The numbers by which a graph and its callers know a tensor.
enum Id : int64_t {
  kQ,
  kK,
  kV,
  kOut,
  kStats,
  kGradOut,
  kGradQ,
  kGradK,
  kGradV,
  kQueryLengths,
  kKeyLengths,
  kStatsBegin,
  kBegin  // + the number of a tensor: where its sequences begin
};

// ---- What a graph depends on ----

// Distances of a [tokens, heads, size] tensor, whose channels are neighbors.
struct Strides {
  int64_t token = 0, head = 0;
  auto operator<=>(const Strides&) const = default;
};

Strides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1)}; }

struct GraphKey {
  bool backward = false;
  at::ScalarType dtype = at::kBFloat16;
  int64_t b = 0, s = 0, m = 0;               // sequences, longest queries and keys, rounded up
  int64_t n = 0, g = 0, d = 0, e = 0;        // heads and their sizes
  int64_t query_tokens = 0, key_tokens = 0;  // their sum over sequences, rounded up: the size of backward's workspace
  bool causal = false, ends_align = false;   // queries are the last tokens of their keys
  int64_t window = 0;
  double scale = 0;
  Strides q, k, v, grad_out;
  auto operator<=>(const GraphKey&) const = default;
};

int64_t power_of_two(int64_t x, int64_t least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(x, least))));
}

// The least sizes keep the number of graphs small where sequences are short.
GraphKey key_of(const AttentionCall& call, const at::Tensor* grad_out) {
  const SequenceLayout &queries = call.queries, &keys = call.keys;
  GraphKey key{.backward = grad_out != nullptr,
               .dtype = call.q.scalar_type(),
               .b = power_of_two(queries.sequences(), 4),
               .s = power_of_two(queries.longest(), 256),
               .m = power_of_two(keys.longest(), 256),
               .n = call.q.size(1),
               .g = call.k.size(1),
               .d = call.q.size(2),
               .e = call.v.size(2),
               .causal = call.options.causal,
               .ends_align = call.options.causal && queries.cumulative() != keys.cumulative(),
               .window = call.options.window,
               .scale = call.options.scale,
               .q = strides_of(call.q),
               .k = strides_of(call.k),
               .v = strides_of(call.v)};
  if (grad_out == nullptr) return key;
  key.grad_out = strides_of(*grad_out);
  // Eight sizes per power of two.
  const auto rounded_up = [](int64_t tokens) {
    const int64_t step = std::max<int64_t>(1024, power_of_two(tokens, 1) / 16);
    return (tokens + step - 1) / step * step;
  };
  key.query_tokens = rounded_up(queries.tokens());
  key.key_tokens = rounded_up(keys.tokens());
  return key;
}

// ---- Graphs ----

using TensorInGraph = std::shared_ptr<fe::graph::Tensor_attributes>;

// Builds the graph of a key: tensors, attention, and what it returns.
class GraphBuilder {
 public:
  explicit GraphBuilder(const GraphKey& key) : key_(key), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(key.dtype == at::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<Graph> build() {
    if (key_.backward)
      add_backward();
    else
      add_forward();
    return graph_;
  }

 private:
  TensorInGraph index(int64_t id, int64_t count, fe::DataType_t type) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(id)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(type));
  }
  TensorInGraph begin(int64_t id) { return index(id, key_.b + 1, fe::DataType_t::INT64); }

  // `longest` tokens of each sequence, [b, heads, longest, size], which begin where `begin` says.
  void shape(fe::graph::Tensor_attributes& x, int64_t id, int64_t longest, int64_t heads, int64_t size, Strides strides,
             TensorInGraph begin) {
    x.set_uid(id)
        .set_dim({key_.b, heads, longest, size})
        .set_stride({longest * strides.token, strides.head, strides.token, 1})
        .set_ragged_offset(std::move(begin));
  }
  TensorInGraph input(int64_t id, int64_t longest, int64_t heads, int64_t size, Strides strides) {
    fe::graph::Tensor_attributes x;
    shape(x, id, longest, heads, size, strides, begin(kBegin + id));
    return graph_->tensor(x);
  }
  void output(const TensorInGraph& x, int64_t id, int64_t longest, int64_t heads, int64_t size) {
    shape(*x, id, longest, heads, size, {heads * size, size}, begin(kBegin + id));
    x->set_output(true);
  }
  // [t, n] fp32: no rows of padding, as backward may be asked for in other lengths.
  void shape_stats(fe::graph::Tensor_attributes& stats) {
    shape(stats, kStats, key_.s, key_.n, 1, {key_.n, 1}, begin(kStatsBegin));
    stats.set_data_type(fe::DataType_t::FLOAT);
  }

  template <typename Attributes>
  Attributes attributes() {
    Attributes a;
    a.set_attn_scale(static_cast<float>(key_.scale))
        .set_padding_mask(true)
        .set_seq_len_q(index(kQueryLengths, key_.b, fe::DataType_t::INT32))
        .set_seq_len_kv(index(kKeyLengths, key_.b, fe::DataType_t::INT32));
    if (key_.causal)
      a.set_diagonal_alignment(key_.ends_align ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                               : fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
    if (key_.window > 0) a.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    return a;
  }

  void add_forward() {
    const auto& k = key_;
    const auto [out, stats] =
        graph_->sdpa(input(kQ, k.s, k.n, k.d, k.q), input(kK, k.m, k.g, k.d, k.k), input(kV, k.m, k.g, k.e, k.v),
                     attributes<fe::graph::SDPA_attributes>().set_generate_stats(true));
    output(out, kOut, k.s, k.n, k.e);
    shape_stats(*stats);
    stats->set_output(true);
  }

  void add_backward() {
    const auto& k = key_;
    fe::graph::Tensor_attributes stats;
    shape_stats(stats);
    const auto [dq, dk, dv] = graph_->sdpa_backward(
        input(kQ, k.s, k.n, k.d, k.q), input(kK, k.m, k.g, k.d, k.k), input(kV, k.m, k.g, k.e, k.v),
        input(kOut, k.s, k.n, k.e, {k.n * k.e, k.e}), input(kGradOut, k.s, k.n, k.e, k.grad_out), graph_->tensor(stats),
        attributes<fe::graph::SDPA_backward_attributes>()
            .set_max_total_seq_len_q(k.query_tokens)
            .set_max_total_seq_len_kv(k.key_tokens));
    output(dq, kGradQ, k.s, k.n, k.d);
    output(dk, kGradK, k.m, k.g, k.d);
    output(dv, kGradV, k.m, k.g, k.e);
  }

  const GraphKey& key_;
  std::shared_ptr<Graph> graph_;
};

// ---- Plans ----

// Backward runs on a thread of its own: one thread at a time looks up, builds and starts a graph.
class CudnnPlans final : public AttentionPlans {
 public:
  // Starts the graph of the key with these tensors. Returns false if cuDNN has no kernel for it.
  bool run(const GraphKey& key, std::unordered_map<int64_t, void*>& tensors, const at::Tensor& like);
  int64_t kept() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(graphs_.size());
  }

 private:
  // A graph that is ready to run; no graph if cuDNN has no kernel.
  struct Ready {
    std::shared_ptr<Graph> graph;
    int64_t workspace = 0;
  };
  Ready make(const GraphKey& key);

  mutable std::mutex mutex_;        // guards everything below
  cudnnHandle_t handle_ = nullptr;  // never destroyed: that would wait for the device, which may hang when a run fails
  int device_ = -1;
  std::map<GraphKey, Ready> graphs_;
};

// Four fp32 numbers for each channel of a query head. For some head sizes cuDNN needs room for b · s tokens instead of
// those that there are, which may be any factor more.
int64_t most_workspace(const GraphKey& key) {
  return (int64_t{1} << 26) + 16 * std::max(key.query_tokens, key.key_tokens) * key.n * (key.d + key.e);
}

CudnnPlans::Ready CudnnPlans::make(const GraphKey& key) {
  Ready ready{GraphBuilder(key).build()};
  if (ready.graph->build(handle_, {fe::HeurMode_t::A}).is_bad()) return {};
  if (ready.graph->get_workspace_size(ready.workspace).is_bad()) return {};
  return ready.workspace <= most_workspace(key) ? ready : Ready{};
}

bool CudnnPlans::run(const GraphKey& key, std::unordered_map<int64_t, void*>& tensors, const at::Tensor& like) {
  auto* const stream = static_cast<cudaStream_t>(stream_of(like));  // also checks that the device is the current one
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) {
    check(fe::detail::create_handle(&handle_) == CUDNN_STATUS_SUCCESS, "cuDNN could not be started");
    device_ = like.get_device();
  }
  check(like.get_device() == device_,
        "attention on cuda:{} got the plans of cuda:{}; each device needs its own AttentionPlans", like.get_device(),
        device_);
  // A key without a kernel keeps its empty entry, so that cuDNN is not asked again.
  auto found = graphs_.find(key);
  if (found == graphs_.end()) found = graphs_.emplace(key, make(key)).first;
  const Ready& ready = found->second;
  if (!ready.graph) return false;
  check(fe::detail::set_stream(handle_, stream) == CUDNN_STATUS_SUCCESS, "cuDNN rejected the current stream");
  const at::Tensor workspace = at::empty({std::max<int64_t>(ready.workspace, 1)}, like.options().dtype(at::kByte));
  auto status = ready.graph->execute(handle_, tensors, workspace.mutable_data_ptr());
  check(status.is_good(), "cuDNN could not compute attention over {} sequences: {}", key.b, status.get_message());
  return true;
}

// ---- Where sequences begin ----

// Returns values for b sequences on the device: the given ones, then `rest`.
at::Tensor padded(std::vector<int64_t> values, int64_t count, int64_t rest, at::ScalarType type, at::Device device) {
  values.resize(static_cast<size_t>(count), rest);
  return to_device(at::tensor(values, at::kLong).to(type), device);
}

// The lengths of the sequences, int32 [b].
at::Tensor lengths(const SequenceLayout& layout, int64_t b, at::Device device) {
  return layout.derived(fmt::format("cudnn lengths {} {}", b, device.str()), [&] {
    const std::vector<int64_t>& ends = layout.cumulative();
    std::vector<int64_t> all;
    for (size_t i = 0; i + 1 < ends.size(); ++i) all.push_back(ends[i + 1] - ends[i]);
    return padded(std::move(all), b, 0, at::kInt, device);
  });
}

// How many elements lie before each sequence if tokens are `distance` apart, int64 [b + 1].
at::Tensor begins(const SequenceLayout& layout, int64_t b, int64_t distance, at::Device device) {
  return layout.derived(fmt::format("cudnn begins {} {} {}", b, distance, device.str()), [&] {
    std::vector<int64_t> all = layout.cumulative();
    for (int64_t& token : all) token *= distance;
    const int64_t end = all.back();
    return padded(std::move(all), b + 1, end, at::kLong, device);
  });
}

// The tensors of a call by their numbers, and what keeps those alive that are made for it.
class Tensors {
 public:
  Tensors(const AttentionCall& call, int64_t b) : call_(call), b_(b), device_(call.q.device()) {
    add(kQueryLengths, lengths(call.queries, b, device_));
    add(kKeyLengths, lengths(call.keys, b, device_));
  }
  void add_queries(int64_t id, const at::Tensor& x) { add_sequences(id, x, call_.queries); }
  void add_keys(int64_t id, const at::Tensor& x) { add_sequences(id, x, call_.keys); }
  void add_stats(const at::Tensor& stats) {
    add(kStats, stats);
    add(kStatsBegin, begins(call_.queries, b_, stats.size(1), device_));
  }
  std::unordered_map<int64_t, void*>& pointers() { return pointers_; }

 private:
  void add(int64_t id, const at::Tensor& x) {
    pointers_[id] = x.mutable_data_ptr();
    kept_.push_back(x);
  }
  void add_sequences(int64_t id, const at::Tensor& x, const SequenceLayout& layout) {
    add(id, x);
    add(kBegin + id, begins(layout, b_, x.stride(0), device_));
  }

  const AttentionCall& call_;
  int64_t b_;
  at::Device device_;
  std::unordered_map<int64_t, void*> pointers_;
  std::vector<at::Tensor> kept_;
};

// Kernels copy 16 bytes at a time.
bool aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
         x.stride(2) == 1;
}

CudnnPlans* plans_of(const AttentionCall& call) { return dynamic_cast<CudnnPlans*>(call.options.plans); }

bool library_is_loaded() {
  static const bool loaded = [] {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOLOAD | RTLD_LAZY);
    return fe::cudnn_dlhandle != nullptr;
  }();
  return loaded;
}

}  // namespace

std::unique_ptr<AttentionPlans> make_cudnn_plans() {
  return library_is_loaded() ? std::make_unique<CudnnPlans>() : nullptr;
}

std::optional<KernelResult> attention_cudnn_forward(const AttentionCall& call) {
  CudnnPlans* const plans = plans_of(call);
  if (plans == nullptr || !aligned(call.q) || !aligned(call.k) || !aligned(call.v)) return std::nullopt;
  const GraphKey key = key_of(call, /*grad_out=*/nullptr);
  const int64_t t = call.q.size(0);
  const at::Tensor out = at::empty({t, key.n, key.e}, call.q.options());
  const at::Tensor stats = at::empty({t, key.n}, call.q.options().dtype(at::kFloat));
  Tensors tensors(call, key.b);
  tensors.add_queries(kQ, call.q);
  tensors.add_keys(kK, call.k);
  tensors.add_keys(kV, call.v);
  tensors.add_queries(kOut, out);
  tensors.add_stats(stats);
  if (!plans->run(key, tensors.pointers(), call.q)) return std::nullopt;
  return KernelResult{.out = out, .log_sum_exp = stats.t().contiguous()};
}

std::optional<AttentionGrads> attention_cudnn_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                                       const KernelResult& result) {
  CudnnPlans* const plans = plans_of(call);
  if (plans == nullptr || !aligned(call.q) || !aligned(call.k) || !aligned(call.v)) return std::nullopt;
  const at::Tensor dout = aligned(grad_out) ? grad_out : grad_out.contiguous();
  const at::Tensor out = result.out.contiguous(), stats = result.log_sum_exp.t().contiguous();
  const GraphKey key = key_of(call, &dout);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const AttentionGrads grads{like(call.q), like(call.k), like(call.v)};
  Tensors tensors(call, key.b);
  for (const auto& [id, x] :
       {std::pair<int64_t, at::Tensor>{kQ, call.q}, {kOut, out}, {kGradOut, dout}, {kGradQ, grads.q}})
    tensors.add_queries(id, x);
  for (const auto& [id, x] :
       {std::pair<int64_t, at::Tensor>{kK, call.k}, {kV, call.v}, {kGradK, grads.k}, {kGradV, grads.v}})
    tensors.add_keys(id, x);
  tensors.add_stats(stats);
  if (!plans->run(key, tensors.pointers(), call.q)) return std::nullopt;
  return grads;
}

}  // namespace megalith::ops
