// When memory runs out, the allocator's message names bytes, not causes. This one compares the plan with what was in
// use and ranks the options that are still off by what they would save. The savings are estimates: the parts of the
// plan are known, but activations are what remains of the memory in use after parameters, gradients, optimizer and
// logits.
#include "megalith/run/out_of_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <new>

#include "megalith/base/error.h"
#include "megalith/observe/units.h"
#include "megalith/plan/report.h"
#include "megalith/run/plan_inputs.h"

namespace megalith::run {

namespace {

// An option, and the bytes that it would save on this rank.
struct Saving {
  double bytes = 0;
  std::string advice;
};

// Returns the planned bytes of a part; 0 for a part that the plan does not have.
double part(const MemoryFacts& facts, std::string_view name) {
  for (const auto& [part_name, bytes] : facts.planned)
    if (part_name == name) return bytes;
  return 0;
}

// Returns the savings of options that are not in use yet, largest first.
std::vector<Saving> savings(const plan::RunShape& run, const MemoryFacts& facts) {
  const double planned = part(facts, "parameters") + part(facts, "gradients") + part(facts, "optimizer");
  const double logits = static_cast<double>(facts.tokens) * static_cast<double>(facts.vocab) * run.element_bytes();
  const bool whole_logits = run.options.loss_chunk == 0;
  // Activations are planned where the planner knows the model; elsewhere they are the rest of what was in use.
  const double kept = std::max({0.0, part(facts, "activations"), facts.used - planned - (whole_logits ? logits : 0)});
  std::vector<Saving> all;
  // 0.9: full recomputation still keeps the inputs of layers.
  if (run.recompute != plan::Recompute::kFull)
    all.push_back({0.9 * kept, "recompute_granularity full (layers are computed twice)"});
  if (const int64_t micro_batch = run.micro_batch_size; micro_batch > 1)
    all.push_back(
        {(kept + (whole_logits ? logits : 0)) / 2,
         fmt::format("per_device_train_batch_size {} with twice the gradient_accumulation_steps", micro_batch / 2)});
  if (whole_logits) all.push_back({logits, "cross_entropy_loss_fusion (the loss some tokens at a time)"});
  if (!run.gradients.use_distributed_optimizer && facts.sharers > 1)
    all.push_back({part(facts, "optimizer") * (1 - 1.0 / facts.sharers),
                   fmt::format("use_distributed_optimizer over {} data-parallel ranks", facts.sharers)});
  if (run.offload_fraction == 0)
    all.push_back({part(facts, "optimizer"), "optimizer_cpu_offload (its state on the host)"});
  // The one remedy that needs more hardware. It halves the state, and is last in the list only if the others save
  // more.
  all.push_back({planned / 2, "tensor_model_parallel_size, doubled, on more GPUs"});
  std::ranges::stable_sort(all, std::ranges::greater{}, &Saving::bytes);
  return all;
}

}  // namespace

MemoryFacts memory_facts(const RunSettings& run, const model::ModelConfig& model,
                         const parallel::ParallelContext& context) {
  const layout::GridShape& shape = context.grid().shape();
  const c10::Device device = context.device();
  MemoryFacts facts;
  const auto memory = planned_memory(run, model, run.sequence_length, device);
  if (memory)
    facts.planned = plan::parts_of(*memory);
  else if (model.num_layers > 0)  // a program's own model may be of any kind
    facts.planned = {{"parameters",
                      run.shape.element_bytes() * static_cast<double>(parameter_count(model)) / (shape.tp * shape.pp)}};
  facts.used = static_cast<double>(peak_bytes(device));
  facts.capacity = static_cast<double>(capacity_bytes(device));
  facts.tokens = run.shape.micro_batch_size * std::max<int64_t>(1, run.sequence_length) / shape.cp;
  facts.vocab = model.vocab_size / shape.tp;
  facts.sharers = shape.dp();
  return facts;
}

std::string out_of_memory_text(const plan::RunShape& run, const MemoryFacts& facts) {
  std::vector<std::string> planned, advice;
  double sum = 0;
  for (const auto& [name, bytes] : facts.planned) {
    planned.push_back(fmt::format("{} {}", name, observe::bytes_text(bytes)));
    sum += bytes;
  }
  const std::vector<Saving> all = savings(run, facts);
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i)
    advice.push_back(fmt::format("{}: about {}", all[i].advice, observe::bytes_text(all[i].bytes)));
  return fmt::format(
      "the device is out of memory: {} were in use{} when more was asked for; planned were {}: {}{}. What would save"
      " most: {}",
      observe::bytes_text(facts.used),
      facts.capacity > 0 ? fmt::format(" of {}", observe::bytes_text(facts.capacity)) : "", observe::bytes_text(sum),
      fmt::join(planned, ", "), part(facts, "activations") > 0 ? "" : ", and activations beside them",
      fmt::join(advice, "; "));
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  if (!dynamic_cast<const c10::Error*>(&error)) return false;
  // Failures outside libtorch's allocator have no type of their own; only the text tells.
  constexpr auto kSigns = std::to_array<std::string_view>({"CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                                                           "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory"});
  const std::string_view text = error.what();
  return std::ranges::any_of(kSigns, [&](std::string_view sign) { return text.find(sign) != std::string_view::npos; });
}

void explain_out_of_memory(const plan::RunShape& run, const std::function<MemoryFacts()>& facts,
                           const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    // The run ends with a plain Error, not with the allocator's type: exit codes and messages come from the text.
    throw Error(out_of_memory_text(run, facts()));
  }
}

namespace {

// Index of the sum over small and large blocks in libtorch's statistics.
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceIndex index_of(c10::Device device) {
  return static_cast<c10::DeviceIndex>(std::max<int>(device.index(), 0));
}

auto stats_of(c10::Device device) { return c10::getDeviceAllocator(device.type())->getDeviceStats(index_of(device)); }

}  // namespace

// On a CPU the resident set is all that the system reports, and it includes the program itself.
int64_t peak_bytes(c10::Device device) {
  if (device.is_cuda()) return stats_of(device).allocated_bytes[kAll].peak;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t reserved_bytes(c10::Device device) { return stats_of(device).reserved_bytes[kAll].current; }

int64_t capacity_bytes(c10::Device device) {
  if (!device.is_cuda()) return 0;
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(index_of(device)).second);
}

}  // namespace megalith::run
