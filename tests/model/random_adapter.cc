#include "tests/model/random_adapter.h"

#include <ATen/ATen.h>

#include "megalith/model/adapter.h"
#include "megalith/nn/parameter/init.h"

namespace megalith::testing {

namespace fs = std::filesystem;

peft::AdapterConfig everything(const model::ModelConfig& config, bool embedding) {
  peft::AdapterConfig adapter;
  adapter.target_modules = {"all"};
  adapter.rank = 3;
  adapter.alpha = 5;
  if (embedding) adapter.target_modules.emplace_back(config.family == "gpt2" ? "wte" : "embed_tokens");
  if (!config.tied_embeddings) adapter.target_modules.emplace_back("lm_head");
  if (config.moe) adapter.target_modules.emplace_back("gate");
  if (config.moe && config.moe->shared_gate) adapter.target_modules.emplace_back("shared_expert_gate");
  return adapter;
}

void write_random_adapter(const fs::path& model_folder, const fs::path& to, const peft::AdapterConfig& adapter) {
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto models = model::with_adapter(model_folder, {}, context, {.fresh = adapter});
    const at::NoGradGuard no_grad;
    for (const nn::Parameter* p : models.parameters()) {
      if (!p->value.requires_grad()) continue;
      // Modules that are trained in full become others, but similar ones.
      const at::Tensor before = p->value.detach().clone();
      for (const auto& part : p->sharded())
        nn::fill_normal(part.local, 4, part.name, part.global_shape, part.offset, 0, 0.15);
      if (p->spec.role != nn::ParameterRole::kAdapter) p->value.add_(before);
    }
    model::save_adapter(models, to);
  });
}

TokenBatch small_batch(int64_t vocab) {
  const at::Tensor ids = at::arange(32, at::kLong).mul(37).add(5).remainder(vocab);
  return {ids, ids.roll(3), ops::SequenceLayout::dense(2, 16), 0.05};
}

}  // namespace megalith::testing
