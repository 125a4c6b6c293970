// The form of a model's files (FileForm) applied to the names of its family.
#pragma once

#include "megalith/hf/name_map.h"
#include "megalith/model/families/model_config.h"

namespace megalith::model {

// Puts the prefixes of the form into the names of the files.
void rename_parts(const FileForm& form, hf::NameMap& names);
// Replaces the rules of experts that the files keep stacked: those of the layers, and those of multi-token-prediction
// layers, whose names begin with "mtp.".
void stack_experts(const FileForm& form, hf::NameMap& names);
// Finds out whether files keep experts stacked, transposed or not, or one by one: those of the layers, and those of
// multi-token-prediction layers. Files without such experts leave the form as it is.
void read_expert_form(const hf::WeightFiles& files, ModelConfig& config);

}  // namespace megalith::model
