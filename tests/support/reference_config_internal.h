// Experts, latent attention and delta nets in a config.json; for reference_config.cc alone.
#pragma once

#include "tests/support/reference_config.h"

namespace megalith::testing {

// As json::value, but null counts as absent.
template <typename T>
T get(const nlohmann::json& object, const char* key, T fallback) {
  return object.contains(key) && !object.at(key).is_null() ? object.at(key).get<T>() : fallback;
}

// Adds the parts that the family of model.model_type has besides attention and MLP, with small sizes.
// Whether most layers of the family are gated delta nets.
bool has_delta_nets(const std::string& type);
void set_parts_of_family(ReferenceConfig& model);
void read_parts(const nlohmann::json& config, ReferenceConfig& model);
void write_parts(const ReferenceConfig& model, nlohmann::json& config);
// The switches of megatron_gpt that other families fix.
void read_switches(const nlohmann::json& config, ReferenceConfig& model);
void write_switches(const ReferenceConfig& model, nlohmann::json& config);

}  // namespace megalith::testing
