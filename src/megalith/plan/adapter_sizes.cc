#include "megalith/plan/adapter_sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/model/families/family.h"
#include "megalith/peft/names.h"

namespace megalith::plan {

namespace {

// A tensor of a fused weight: its name (ours) and its rows on a rank.
struct Part {
  std::string name;
  int64_t rows;
};

class Updates {
 public:
  Updates(const RunShape& run, int64_t layer)
      : adapter_(*run.options.adapter),
        names_(model::name_map(*run.model)),
        prefix_(fmt::format("layers.{}.", layer)) {}

  // `copies`: experts, each with a weight like this.
  UpdateSize of(const std::vector<Part>& parts, int64_t inputs, int64_t copies = 1) const {
    UpdateSize size;
    std::string last;
    for (const Part& part : parts) {
      const std::string module = peft::module_of(names_, prefix_ + part.name + ".weight");
      if (!all() && !peft::is_target(module, adapter_)) continue;
      if (module != last) size.hidden += adapter_.rank;  // tensors of one module share an A
      last = module;
      size.b += copies * part.rows * adapter_.rank;
    }
    size.a = copies * size.hidden * inputs;
    return size;
  }

 private:
  bool all() const {
    return std::ranges::any_of(adapter_.target_modules,
                               [](const std::string& name) { return name == "all" || name == "all-linear"; });
  }

  const peft::AdapterConfig& adapter_;
  const hf::NameMap names_;
  const std::string prefix_;
};

}  // namespace

LayerUpdates layer_updates(const RunShape& run, int64_t layer) {
  LayerUpdates updates;
  if (!run.options.adapter) return updates;
  const model::ModelConfig& m = *run.model;
  const Updates all(run, layer);
  const int64_t tp = run.grid.tp, h = m.hidden_size;
  const int64_t q = m.num_heads * m.head_dim / tp, kv = m.num_kv_heads * m.head_dim / tp;
  updates.qkv =
      all.of({{"attention.q", (m.attention_output_gate ? 2 : 1) * q}, {"attention.k", kv}, {"attention.v", kv}}, h);
  updates.out = all.of({{"attention.o", h}}, q);
  const auto up_parts = [&m](const std::string& block, int64_t width) {
    std::vector<Part> parts;
    if (m.gated_mlp) parts.push_back({block + "gate", width});
    parts.push_back({block + "up", width});
    return parts;
  };
  if (!m.is_moe(layer)) {
    updates.up = all.of(up_parts("mlp.", m.mlp_width / tp), h);
    updates.down = all.of({{"mlp.down", h}}, m.mlp_width / tp);
    return updates;
  }
  const nn::MoeShape& moe = *m.moe;
  const int64_t here = moe.router.experts / run.grid.ep, width = moe.width / run.grid.expert_tp();
  updates.experts_up = all.of(up_parts("mlp.experts.0.", width), h, here);
  updates.experts_down = all.of({{"mlp.experts.0.down", h}}, width, here);
  if (moe.shared_width == 0) return updates;
  updates.up = all.of(up_parts("mlp.shared.", moe.shared_width / tp), h);
  updates.down = all.of({{"mlp.shared.down", h}}, moe.shared_width / tp);
  return updates;
}

std::vector<std::string> adapter_problems(const RunShape& run) {
  if (!run.options.adapter) return {};
  const model::ModelConfig& m = *run.model;
  std::vector<std::string> found;
  if (m.latent || m.delta_net || m.mtp_layers > 0)
    found.push_back(
        fmt::format("adapters of {} models are not planned: their latent or linear attention, or"
                    " multi-token prediction, is not counted",
                    m.family));
  const auto& adapter = *run.options.adapter;
  if (!adapter.modules_to_save.empty())
    found.emplace_back("additional_target is not planned: modules that are trained as a whole are not counted");
  const hf::NameMap names = model::name_map(m);
  for (const char* ours :
       {"embedding.weight", "head.weight", "layers.0.mlp.router.weight", "layers.0.mlp.shared_gate.weight"})
    if (const std::string module = peft::module_of(names, ours); !module.empty() && peft::is_target(module, adapter))
      found.push_back(fmt::format("lora_target {} is not planned; plan the run without it", module));
  return found;
}

}  // namespace megalith::plan
