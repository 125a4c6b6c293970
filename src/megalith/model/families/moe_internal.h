// What the configurations and the names of families with experts have in common.
#pragma once

#include <string>

#include "megalith/model/families/family.h"

namespace megalith::model {

// What files call the parts of a layer with experts.
struct ExpertNames {
  std::string block = "mlp";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of an expert
  std::string shared = "shared_experts";                               // empty: there are none
};

// decoder_names() and the router, the experts (numbered in both) and the shared experts.
hf::NameMap moe_names(const ExpertNames& theirs);

// Number of experts (`number_key`, or num_local_experts as transformers 5 writes), experts a token, and the balancing
// loss where the configuration asks for it (output_router_logits).
nn::MoeShape read_experts(const io::JsonFields& config, const char* number_key);
// What qwen's have in common: experts in every n-th layer.
void read_qwen_experts(const io::JsonFields& config, ModelConfig& c);
// DeepSeek's router: sigmoid scores, a bias on the choice, groups, a scaling factor.
void read_sigmoid_router(const io::JsonFields& config, nn::RouterShape& router);

}  // namespace megalith::model
