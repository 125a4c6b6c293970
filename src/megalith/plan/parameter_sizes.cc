// Bytes of parameters, gradients and optimizer state on one rank. The flat buffers are laid out by the functions that
// training uses (optim::plan_buffer), so padding and shards are exact.
#include "megalith/plan/parameter_sizes.h"

#include <algorithm>

#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/optim/buffer_rules.h"
#include "megalith/optim/optimizer_settings.h"

namespace megalith::plan {

namespace {

using List = std::vector<nn::ParameterSize>;

// The buffers of a chunk: experts have one of their own, because fewer ranks replicate them, and so have weights that
// are kept in fp8.
enum class BufferKind { kDense, kExpert, kFp8 };

// One flat buffer.
struct Buffer {
  std::vector<optim::BufferItem> items;
  int64_t elements = 0;
};

BufferKind kind_of(const nn::ParameterSize& p, const optim::DdpSettings& settings) {
  if (settings.fp8_params && p.in_fp8) return BufferKind::kFp8;
  return p.expert ? BufferKind::kExpert : BufferKind::kDense;
}

// Collects the trained parameters.
Buffer buffer_of(const List& parameters, BufferKind kind, const optim::DdpSettings& settings) {
  Buffer buffer;
  for (const nn::ParameterSize& p : parameters) {
    if (!p.trained || kind_of(p, settings) != kind) continue;
    buffer.items.push_back({p.numel, p.own_bucket});
    buffer.elements += p.numel;
  }
  return buffer;
}

// Returns the bytes of the scales of parameters in fp8.
double scale_bytes(const Buffer& buffer, const ops::Fp8Recipe& recipe) {
  const auto scales = recipe.scaling == ops::Fp8Scaling::kBlocks ? buffer.elements / (ops::kFp8Block * ops::kFp8Block)
                                                                 : static_cast<int64_t>(buffer.items.size());
  return 4 * static_cast<double>(scales);
}

// Adds a flat buffer as optim::plan_buffer lays it out, padding included. Every shard of it is owned by one rank.
void add_buffer(const RunShape& run, const Buffer& buffer, BufferKind kind, const optim::DdpSettings& settings,
                StateBytes& bytes) {
  if (buffer.items.empty()) return;
  const int instances = run.grid.num_distributed_optimizer_instances;
  const int shards = (kind == BufferKind::kExpert ? run.grid.edp() : run.dp() * run.grid.cp) / instances;
  const optim::BufferLayout layout = optim::plan_buffer(
      buffer.items,
      optim::buffer_rules(settings, {buffer.elements, run.dp() * run.grid.cp,
                                     settings.use_distributed_optimizer ? shards : 1, run.machinery.cuda}));
  const auto numel = static_cast<double>(layout.numel());
  // Gradients are fp32 unless grad_reduce_in_bf16 is set.
  const double grad_bytes = run.half() && settings.grad_dtype != at::kFloat ? 2 : 4;
  if (kind == BufferKind::kFp8) {
    bytes.parameters += numel + scale_bytes(buffer, *settings.fp8_params);
    bytes.before_fp8 += static_cast<double>(buffer.elements) * run.element_bytes();
    bytes.owned_fp8 += numel / layout.shards;
  } else {
    bytes.parameters += numel * (run.options.adapter ? 4 : run.element_bytes());
  }
  bytes.gradients += numel * grad_bytes;
  bytes.elements += static_cast<double>(buffer.elements);
  bytes.owned += numel / layout.shards;
  for (const auto& bucket : layout.buckets)
    bytes.largest_bucket = std::max(bytes.largest_bucket, static_cast<double>(bucket.numel()) * grad_bytes);
}

}  // namespace

StateBytes state_bytes(const RunShape& run, const model::ModelFootprint& model, const layout::LayerSplit& split,
                       int pp_rank) {
  StateBytes bytes;
  for (int chunk = 0; chunk < split.chunks(); ++chunk) {
    const List parameters = model.parameters(split.stage(pp_rank, chunk));
    const optim::DdpSettings settings = optim::settings_of_chunk(run.gradients, pp_rank == 0, chunk);
    for (const BufferKind kind : {BufferKind::kDense, BufferKind::kExpert, BufferKind::kFp8})
      add_buffer(run, buffer_of(parameters, kind, settings), kind, settings, bytes);
    for (const nn::ParameterSize& p : parameters) {
      const double held = static_cast<double>(p.numel) * (p.buffer || p.adapter ? 4 : run.element_bytes());
      if (!p.trained) bytes.frozen += held;
      if (run.reference && !p.adapter) bytes.reference += held;
    }
  }
  bytes.parameters += bytes.frozen;
  const double hosted = run.offload_fraction;
  // An offloaded element always has its main parameter on the host.
  const bool copies = run.half() && !run.options.adapter;  // adapters are fp32 already
  const double others = bytes.owned - bytes.owned_fp8, in_fp8 = bytes.owned_fp8 * run.fp8_main_parameter_bytes;
  const double states = bytes.owned * run.optimizer_state_bytes;
  bytes.optimizer = (1 - hosted) * (states + others * (copies ? run.main_parameter_bytes : 0) + in_fp8);
  bytes.optimizer_host = hosted * (states + others * (copies ? run.main_parameter_bytes : 4) + in_fp8);
  return bytes;
}

}  // namespace megalith::plan
