// Configuration keys and tensor names that the Qwen families with gated delta nets have in common.
#pragma once

#include "megalith/model/families/family.h"

namespace megalith::model {

// Reads what qwen3_next and qwen3_5 have in common: gated attention of which a quarter of the channels rotates,
// zero-centered norms, the sizes of the delta net and the layers that have one (layer_types, or full_attention_interval
// in the first files).
ModelConfig read_delta_net_decoder(const io::JsonFields& config);
// Reads the experts of these families, with their gated shared one.
void read_delta_net_experts(const io::JsonFields& config, ModelConfig& c);

// Adds to `names` those of a delta net but its input projections.
void add_delta_net_names(hf::NameMap& names);
// Adds the names of a multi-token-prediction layer. Files number mtp.layers.N but have only one set of norms and one
// projection, so their names fit one layer; throws ConfigError for more.
void add_qwen_mtp_names(const ModelConfig& config, hf::NameMap& names);

}  // namespace megalith::model
