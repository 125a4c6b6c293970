// A family states its names once, as those of a text model with one tensor per expert:
//
//   model.layers.{}.mlp.experts.{}.gate_proj.weight     layers.{}.mlp.experts.{}.gate.weight
//   …up_proj.weight, …down_proj.weight                  …up.weight, …down.weight
//
// Files of the same model may have another prefix, and one tensor for the experts of a layer:
//
//   model.language_model.layers.{}.mlp.experts.gate_up_proj     gate and up, stacked
//   …down_proj                                                  down, stacked
#include "megalith/model/families/file_form_internal.h"

#include <string_view>
#include <utility>

namespace megalith::model {

namespace {

constexpr std::string_view kModelPrefix = "model.", kHeadName = "lm_head.", kExpertWord = ".experts.{}.";

std::string renamed_part(const std::string& name, const FileForm& form) {
  if (name.starts_with(kModelPrefix)) return form.model_prefix + name.substr(kModelPrefix.size());
  return name.starts_with(kHeadName) ? form.head_prefix + name : name;
}

// Returns how a stack of experts is stored, by the shape of down_proj or, where that is square, of gate_up_proj: both
// cannot be.
ExpertStorage stack_storage(const hf::WeightFiles& files, const std::string& down, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, width = config.moe->width;
  const bool square = hidden == width;
  const std::string up = down.substr(0, down.size() - std::string_view("down_proj").size()) + "gate_up_proj";
  const hf::TensorInfo* info = files.find(square ? up : down);
  const bool transposed = info && info->shape.size() == 3 && info->shape[1] != (square ? 2 * width : hidden);
  return transposed ? ExpertStorage::kStackedTransposed : ExpertStorage::kStacked;
}

// Returns how the experts of the tensors with a prefix are stored; `otherwise` if there are none.
ExpertStorage storage_in(const hf::WeightFiles& files, std::string_view prefix, const ModelConfig& config,
                         ExpertStorage otherwise) {
  bool each = false;
  for (const std::string& name : files.names()) {
    if (!name.starts_with(prefix)) continue;
    if (name.ends_with(".experts.down_proj")) return stack_storage(files, name, config);
    each |= name.find(".experts.") != std::string::npos && name.ends_with(".down_proj.weight");
  }
  return each ? ExpertStorage::kEach : otherwise;
}

}  // namespace

void read_expert_form(const hf::WeightFiles& files, ModelConfig& config) {
  FileForm& form = config.form;
  form.experts = storage_in(files, form.model_prefix + "layers.", config, form.experts);
  form.mtp_experts = storage_in(files, "mtp.", config, form.experts);  // new layers are written as the others
}

void rename_parts(const FileForm& form, hf::NameMap& names) {
  for (hf::NameRule& rule : names.rules) {
    rule.theirs = renamed_part(rule.theirs, form);
    for (std::string& copy : rule.copies) copy = renamed_part(copy, form);
  }
}

void stack_experts(const FileForm& form, hf::NameMap& names) {
  std::vector<hf::NameRule> rules;
  for (hf::NameRule& rule : names.rules) {
    const size_t word = rule.theirs.find(kExpertWord);
    const ExpertStorage storage = rule.theirs.starts_with("mtp.") ? form.mtp_experts : form.experts;
    if (word == std::string::npos || storage == ExpertStorage::kEach) {
      rules.push_back(std::move(rule));
      continue;
    }
    const std::string& ours = rule.ours[0];
    const std::string block = rule.theirs.substr(0, word) + ".experts.";
    hf::NameRule stack{.theirs = block + "down_proj",
                       .ours = {ours},
                       .transposed = storage == ExpertStorage::kStackedTransposed,
                       .stacked = true};
    if (ours.ends_with(".up.weight")) continue;  // comes with its gate
    if (ours.ends_with(".gate.weight")) {
      stack.theirs = block + "gate_up_proj";
      stack.ours.push_back(ours.substr(0, ours.size() - std::string_view("gate.weight").size()) + "up.weight");
    }
    rules.push_back(std::move(stack));
  }
  names.rules = std::move(rules);
}

}  // namespace megalith::model
