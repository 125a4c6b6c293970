// Bytes of parameters, gradients and optimizer state on one rank. The flat buffers are laid out by the functions that
// training uses (optim::plan_buffer), so padding and shards are exact.
#include "megalith/plan/parameter_sizes.h"

#include <algorithm>

#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/optim/buffer_rules.h"
#include "megalith/optim/optimizer_settings.h"
#include "megalith/plan/rank_sizes.h"

namespace megalith::plan {

namespace {

using List = std::vector<nn::ParameterSize>;

// The buffers of a chunk: experts have one of their own, because fewer ranks replicate them, and so have weights that
// are kept in fp8.
enum class BufferKind { kDense, kExpert, kFp8 };

// One flat buffer. Updates of adapters are fp32; embeddings and heads that are trained beside them have the model's
// type, and in 16 bits a buffer of their own.
struct Buffer {
  BufferKind kind = BufferKind::kDense;
  bool fp32 = false;
  bool matrices = false;  // those that Muon updates, or no such
  std::vector<optim::BufferItem> items;
  int64_t elements = 0;
};

BufferKind kind_of(const nn::ParameterSize& p, const optim::DdpSettings& settings) {
  if (settings.fp8_params && p.in_fp8) return BufferKind::kFp8;
  return p.expert ? BufferKind::kExpert : BufferKind::kDense;
}

// Collects the trained parameters. `fp32` does not matter for weights in fp8, which are never beside adapters.
Buffer buffer_of(const RunShape& run, const List& parameters, BufferKind kind, bool fp32, bool matrices,
                 const optim::DdpSettings& settings) {
  Buffer buffer{.kind = kind, .fp32 = fp32, .matrices = matrices, .items = {}};
  for (const nn::ParameterSize& p : parameters) {
    if (!p.trained || kind_of(p, settings) != kind) continue;
    if ((settings.matrices_apart && p.matrices.any()) != matrices) continue;
    if (kind != BufferKind::kFp8 && (!run.half() || p.adapter) != fp32) continue;
    buffer.items.push_back({p.numel, p.own_bucket});
    buffer.elements += p.numel;
  }
  return buffer;
}

// Returns the bytes of the scales of parameters in fp8.
double scale_bytes(const Buffer& buffer, const ops::Fp8Recipe& recipe) {
  const auto scales = recipe.scaling == ops::Fp8Scaling::kBlocks ? buffer.elements / (ops::kFp8Block * ops::kFp8Block)
                                                                 : std::ssize(buffer.items) * optim::kFp8ScaleMultiple;
  return 4 * static_cast<double>(scales);
}

// Adds a flat buffer as optim::plan_buffer lays it out, padding included. Every shard of it is owned by one rank.
void add_buffer(const RunShape& run, const Buffer& buffer, const optim::DdpSettings& settings, StateBytes& bytes) {
  if (buffer.items.empty()) return;
  const int instances = run.grid.num_distributed_optimizer_instances;
  const int shards = (buffer.kind == BufferKind::kExpert ? run.grid.edp() : run.dp() * run.grid.cp) / instances;
  const optim::BufferLayout layout = optim::plan_buffer(
      buffer.items,
      optim::buffer_rules(settings, {buffer.elements, run.dp() * run.grid.cp,
                                     settings.use_distributed_optimizer ? shards : 1, run.machinery.cuda}));
  const auto numel = static_cast<double>(layout.numel());
  // Gradients are fp32 unless grad_reduce_in_bf16 is set.
  const double grad_bytes = run.half() && settings.grad_dtype != at::kFloat ? 2 : 4;
  const bool in_fp8 = buffer.kind == BufferKind::kFp8;
  if (in_fp8) {
    bytes.parameters += numel + scale_bytes(buffer, *settings.fp8_params);
    bytes.before_fp8 += static_cast<double>(buffer.elements) * run.element_bytes();
  } else {
    bytes.parameters += numel * (buffer.fp32 ? 4 : run.element_bytes());
  }
  bytes.gradients += numel * grad_bytes;
  SharedBytes& shared = buffer.kind == BufferKind::kExpert ? bytes.experts : bytes.dense;
  shared.gradients += numel * grad_bytes;
  shared.parameters += in_fp8 ? numel : numel * (buffer.fp32 ? 4 : run.element_bytes());
  bytes.elements += static_cast<double>(buffer.elements);
  if (buffer.matrices) bytes.matrix_elements += static_cast<double>(buffer.elements);
  const double owned = numel / layout.shards, hosted = run.offload_fraction;
  bytes.owned += owned;
  // An offloaded element always has its main parameter on the host.
  const double state = buffer.matrices && run.muon ? run.muon->state_bytes : run.optimizer_state_bytes;
  const double main = in_fp8 ? run.fp8_main_parameter_bytes : run.main_parameter_bytes;
  bytes.optimizer += owned * (1 - hosted) * (state + (buffer.fp32 ? 0 : main));
  bytes.optimizer_host += owned * hosted * (state + (buffer.fp32 ? 4 : main));
  for (const auto& bucket : layout.buckets)
    shared.largest_bucket = std::max(shared.largest_bucket, static_cast<double>(bucket.numel()) * grad_bytes);
  bytes.largest_bucket = std::max(bytes.largest_bucket, shared.largest_bucket);
}

// Returns the bytes of a teacher on a rank: its parameters, none of them trained, and on the last stage the hidden
// states that the micro-batches of a step wait for.
double teacher_bytes(const RunShape& run, int pp_rank) {
  const RunShape teacher = teacher_shape(run);
  const model::ModelFootprint footprint(*teacher.model, teacher.options, rank_sizes(teacher));
  const layout::LayerSplit split = teacher.split();
  double bytes = 0;
  for (int chunk = 0; chunk < split.chunks(); ++chunk)
    for (const nn::ParameterSize& p : footprint.parameters(split.stage(pp_rank, chunk)))
      bytes += static_cast<double>(p.numel) * (p.buffer ? 4 : run.element_bytes());
  if (pp_rank == run.grid.pp - 1) bytes += static_cast<double>(run.microbatches) * teacher.stream_bytes();
  return bytes;
}

}  // namespace

StateBytes state_bytes(const RunShape& run, const model::ModelFootprint& model, const layout::LayerSplit& split,
                       int pp_rank) {
  StateBytes bytes;
  for (int chunk = 0; chunk < split.chunks(); ++chunk) {
    const List parameters = model.parameters(split.stage(pp_rank, chunk));
    const optim::DdpSettings settings = optim::settings_of_chunk(run.gradients, chunk);
    for (const bool matrices : {false, true}) {
      for (const BufferKind kind : {BufferKind::kDense, BufferKind::kExpert})
        for (const bool fp32 : {false, true})
          add_buffer(run, buffer_of(run, parameters, kind, fp32, matrices, settings), settings, bytes);
      add_buffer(run, buffer_of(run, parameters, BufferKind::kFp8, /*fp32=*/false, matrices, settings), settings,
                 bytes);
    }
    for (const nn::ParameterSize& p : parameters) {
      const double as_it_is = static_cast<double>(p.numel) * (p.buffer || p.adapter ? 4 : run.element_bytes());
      const double held =
          p.quantized_rows > 0 ? ops::quantized_bytes(*run.options.quantization, p.numel, p.quantized_rows) : as_it_is;
      if (p.trained && run.muon) bytes.matrices += p.matrices;
      if (!p.trained || (run.keeps_base && !p.adapter)) bytes.frozen += held;
      if (run.reference && !p.adapter) bytes.reference += as_it_is;  // a reference of its own is not quantized
    }
  }
  bytes.parameters += bytes.frozen;
  if (run.teacher) bytes.reference += teacher_bytes(run, pp_rank);
  return bytes;
}

}  // namespace megalith::plan
