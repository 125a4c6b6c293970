#include "megalith/cli/out_of_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/observe/units.h"

namespace megalith::cli {

namespace {

struct Saving {
  double bytes = 0;
  std::string advice;
};

double part(const MemoryFacts& facts, std::string_view name) {
  for (const auto& [each, bytes] : facts.planned)
    if (each == name) return bytes;
  return 0;
}

// What is not in use yet, the greatest first. What a layer keeps is known only together: the rest of what is used.
std::vector<Saving> savings(const config::TrainingArguments& args, const MemoryFacts& facts) {
  double planned = 0;
  for (const auto& [name, bytes] : facts.planned) planned += bytes;
  const double logits = static_cast<double>(facts.tokens) * static_cast<double>(facts.vocab) *
                        (args.precision.bf16 || args.precision.fp16 ? 2 : 4);
  const bool whole_logits = !args.fusion.cross_entropy_loss;
  const double kept = std::max(0.0, facts.used - planned - (whole_logits ? logits : 0));
  std::vector<Saving> all;
  if (args.recompute.granularity != config::RecomputeGranularity::kFull)
    all.push_back({0.9 * kept, "recompute_granularity full (layers are computed twice)"});
  if (const int each = args.batch.micro_batch_size.value_or(1); each > 1)
    all.push_back({(kept + (whole_logits ? logits : 0)) / 2,
                   fmt::format("per_device_train_batch_size {} with twice the gradient_accumulation_steps", each / 2)});
  if (whole_logits) all.push_back({logits, "cross_entropy_loss_fusion (the loss some tokens at a time)"});
  if (!args.optimizer.use_distributed_optimizer && facts.sharers > 1)
    all.push_back({part(facts, "optimizer") * (1 - 1.0 / facts.sharers),
                   fmt::format("use_distributed_optimizer over {} data-parallel ranks", facts.sharers)});
  if (!args.optimizer.cpu_offload)
    all.push_back({part(facts, "optimizer"), "optimizer_cpu_offload (its state on the host)"});
  all.push_back({planned / 2, "tensor_model_parallel_size, doubled, on more GPUs"});
  std::ranges::stable_sort(all, std::ranges::greater{}, &Saving::bytes);
  return all;
}

}  // namespace

std::string out_of_memory_text(const config::TrainingArguments& args, const MemoryFacts& facts) {
  std::vector<std::string> planned, advice;
  for (const auto& [name, bytes] : facts.planned)
    planned.push_back(fmt::format("{} {}", name, observe::bytes_text(bytes)));
  const std::vector<Saving> all = savings(args, facts);
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i)
    advice.push_back(fmt::format("{}: about {}", all[i].advice, observe::bytes_text(all[i].bytes)));
  return fmt::format(
      "the device is out of memory: {} were in use{}, of which were planned: {}; the rest are activations. What would "
      "save"
      " most: {}",
      observe::bytes_text(facts.used),
      facts.capacity > 0 ? fmt::format(" of {}", observe::bytes_text(facts.capacity)) : "", fmt::join(planned, ", "),
      fmt::join(advice, "; "));
}

}  // namespace megalith::cli
