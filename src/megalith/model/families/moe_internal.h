// Configuration keys and tensor names that families with experts have in common.
#pragma once

#include <string>

#include "megalith/model/families/family.h"

namespace megalith::model {

// The names of the parts of a layer with experts in files.
struct ExpertNames {
  std::string block = "mlp";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // projections of one expert
  std::string shared = "shared_experts";                               // empty if there are none
};

// Returns decoder_names() plus the router, the experts (numbered both in files and here) and the shared experts.
hf::NameMap moe_names(const ExpertNames& theirs);

// Reads the number of experts (`number_key`, or num_local_experts as transformers 5 writes), the experts per token, and
// the balancing loss if the configuration asks for it (output_router_logits).
nn::MoeShape read_experts(const io::JsonFields& config, const char* number_key);
// Reads what the qwen families have in common: experts in every n-th layer.
void read_qwen_experts(const io::JsonFields& config, ModelConfig& c);
// Reads DeepSeek's router: sigmoid scores, a bias on the choice, groups, a scaling factor.
void read_sigmoid_router(const io::JsonFields& config, nn::RouterShape& router);

}  // namespace megalith::model
