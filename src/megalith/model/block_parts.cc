// Chooses the parts of a layer, and answers questions about the whole model by asking the parts of all layers. Kinds
// are made again for each question: they are a few numbers, and keeping none means that nothing can become stale.
#include "megalith/model/block_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"

namespace megalith::model {

namespace {

// Returns the family's own kind, or else the first of the library's that fits; the last of those always does.
std::unique_ptr<PartKind> kind_of(const Family::MakePart Family::*own, std::span<const KnownKind> known,
                                  const ModelConfig& config, int64_t layer) {
  if (const Family* family = find_family(config); family && family->*own)
    if (auto kind = (family->*own)(config, layer)) return kind;
  const auto first = std::ranges::find_if(known, [&](const KnownKind& each) { return each.fits(config, layer); });
  return first->make(config, layer);
}

// Calls see(kind) for both parts of every layer.
template <typename See>
void for_each_part(const ModelConfig& config, const See& see) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    see(*attention_kind(config, layer));
    see(*feed_forward_kind(config, layer));
  }
}

// Adds a reason unless it is already there: layers are alike and give the same ones.
void add_new(std::vector<std::string>& to, std::string reason) {
  if (std::ranges::find(to, reason) == to.end()) to.push_back(std::move(reason));
}

// Returns the footprint, or throws if the part has none: planning with a guess would be worse than refusing.
std::unique_ptr<nn::PartFootprint> stated(std::unique_ptr<nn::PartFootprint> footprint, const char* part,
                                          const ModelConfig& config, int64_t layer) {
  check<ConfigError>(footprint != nullptr,
                     "{} models cannot be planned: the memory and work of the {} of layer {} are not known;"
                     " its PartKind has to implement footprint()",
                     config.family, part, layer);
  return footprint;
}

}  // namespace

std::unique_ptr<PartKind> attention_kind(const ModelConfig& config, int64_t layer) {
  return kind_of(&Family::attention, known_attention(), config, layer);
}

std::unique_ptr<PartKind> feed_forward_kind(const ModelConfig& config, int64_t layer) {
  return kind_of(&Family::feed_forward, known_feed_forward(), config, layer);
}

std::vector<std::string> tensor_parallel_problems(const ModelConfig& config, int tp) {
  std::vector<std::string> found;
  for_each_part(config, [&](const PartKind& kind) {
    for (std::string& each : kind.tensor_parallel_problems(tp)) add_new(found, std::move(each));
  });
  return found;
}

std::vector<std::string> context_parallel_problems(const ModelConfig& config, int tp, int cp) {
  std::vector<std::string> found;
  if (cp == 1) return found;
  for_each_part(config, [&](const PartKind& kind) {
    if (const std::string reason = kind.facts().whole_sequences; !reason.empty())
      add_new(found, fmt::format("context_parallel_size {} splits sequences, and {}; use context_parallel_size 1", cp,
                                 reason));
    for (std::string& each : kind.context_parallel_problems(tp, cp)) add_new(found, std::move(each));
  });
  return found;
}

std::string capture_problem(const ModelConfig& config) {
  if (config.vision) return "images of a vision tower differ from one micro-batch to the next";
  if (config.audio) return "sounds of an audio tower differ from one micro-batch to the next";
  std::string first;
  for_each_part(config, [&first](const PartKind& kind) {
    if (first.empty()) first = kind.facts().host_work;
  });
  return first;
}

std::unique_ptr<nn::PartFootprint> attention_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                       const ModelOptions& options, int64_t layer) {
  return stated(attention_kind(config, layer)->footprint(scope, options), "attention", config, layer);
}

std::unique_ptr<nn::PartFootprint> feed_forward_footprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                          const ModelOptions& options, int64_t layer) {
  return stated(feed_forward_kind(config, layer)->footprint(scope, options), "feed-forward", config, layer);
}

}  // namespace megalith::model
