// The configuration that goes into an adapter's files, such that peft 0.21 with transformers 5 reads back all of it.
//
// transformers 5 joins the experts of a layer into two tensors. For an adapter whose target_modules name gate_proj,
// up_proj, down_proj or a router, peft therefore moves these names to target_parameters and no longer finds them in
// dense layers and shared experts: that part of an adapter would be dropped without a word. So such modules are written
// as what they are in transformers, tensors, with names that differ for experts and others:
//
//   target_modules     k_proj, o_proj, q_proj, v_proj
//   target_parameters  mlp.experts.gate_up_proj, mlp.experts.down_proj, mlp.shared_expert.gate_proj.weight, …
//   rank_pattern       mlp.experts.gate_up_proj: 2r, since peft joins the factors of gate and up
//   alpha_pattern      the alpha that keeps the scale for that rank
//
// The weights keep their names; peft joins those of the experts itself. read_adapter_config understands this form.
#pragma once

#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/peft/names.h"

namespace megalith::peft {

struct WrittenConfig {
  AdapterConfig config;
  std::vector<std::string> problems;  // reasons why peft cannot load the adapter
};

// `config` has gone through with_targets; `weights` lists the whole model. Returns `config` itself where peft reads it
// correctly: a model without experts, or targets that do not collide.
WrittenConfig written_config(const AdapterConfig& config, const hf::NameMap& names, const std::vector<Weight>& weights);

}  // namespace megalith::peft
