// Megatron-Core names the state of a weight like the weight, so that each kind of state is read as if it were a model:
// layers are unstacked, and queries, keys and values cut apart, by the same code (megatron_names.h).
#include "megalith/model/foreign/foreign_optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/foreign/torch_file.h"
#include "megalith/model/families/family.h"
#include "megalith/model/foreign/megatron_dcp.h"
#include "megalith/model/foreign/megatron_names.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;
using hf::DcpFolder;
using hf::PickleValue;

using Folder = std::shared_ptr<const DcpFolder>;
constexpr const char* kStateOfMegatron = "optimizer.state.";
constexpr int kDeepestSteps = 8;  // levels below "optimizer" where a step may be

// Thrown where the state is incomplete, and caught in this file.
struct LeftOut {
  std::string reason;
};

template <typename... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw LeftOut{fmt::format(text, std::forward<Args>(args)...)};
}

// The tensors whose state is wanted.
std::vector<hf::GlobalTensor> trained(const ModelConfig& config) {
  std::vector<hf::GlobalTensor> tensors;
  for (const hf::GlobalTensor& ours : global_tensors(config))
    if (!ours.buffer) tensors.push_back(ours);
  return tensors;
}

// A step may be a number or a tensor of one.
std::optional<int64_t> step_in(const hf::TorchFile& file, const PickleValue& value) {
  if (value.is(PickleValue::Kind::kInt)) return value.integer;
  if (value.is(PickleValue::Kind::kFloat)) return static_cast<int64_t>(value.number);
  const auto described = file.describe(value);
  if (!described || !described->shape.empty()) return std::nullopt;
  return file.tensor(*described).to(at::kDouble).item<int64_t>();
}

// Looks for common_step or step below a value: their depth depends on the kind of optimizer.
std::optional<int64_t> find_step(const hf::TorchFile& file, const PickleValue& value, int depth) {
  if (depth == 0) return std::nullopt;
  for (const char* name : {"common_step", "step"})
    if (const PickleValue* found = value.find(name))
      if (const auto step = step_in(file, *found)) return step;
  for (const auto& [key, inner] : value.pairs)
    if (const auto step = find_step(file, *inner, depth - 1)) return step;
  for (const PickleValue* inner : value.items)
    if (const auto step = find_step(file, *inner, depth - 1)) return step;
  return std::nullopt;
}

int64_t step_of_megatron(const fs::path& folder) {
  require(fs::exists(folder / "common.pt"), "there is no common.pt, which holds the step");
  const hf::TorchFile file(folder / "common.pt");
  const PickleValue* optimizer = file.root().find("optimizer");
  const auto step = optimizer ? find_step(file, *optimizer, kDeepestSteps) : std::nullopt;
  require(step.has_value(), "common.pt does not say after how many steps it was saved");
  return *step;
}

// Adds one kind of state, from tensors that are called `prefix` and then like the weights.
void add_megatron_state(const Folder& folder, const ModelConfig& config, const std::string& prefix,
                        const std::string& ours_prefix, ForeignOptimizer& result) {
  const auto state = std::make_shared<const MegatronDcp>(*folder, prefix);
  for (const hf::GlobalTensor& ours : trained(config)) {
    const MegatronSource source = megatron_source(*state, config, ours);
    require(state->has(source.name), "{}{} is missing", prefix, source.name);
    const std::string problem = state->problem(source.name, source.shape, source.parts);
    require(problem.empty(), "{}{}", prefix, problem);
    result.tensors.push_back(
        {ours_prefix + ours.name, ours.shape, [folder, state, source, shape = ours.shape] {
           return source.take(state->whole(source.name, source.shape, source.parts)).reshape(shape).to(at::kFloat);
         }});
  }
}

bool has_prefix(const DcpFolder& folder, const std::string& prefix) {
  const auto first = folder.tensors().lower_bound(prefix);
  return first != folder.tensors().end() && first->first.starts_with(prefix);
}

ForeignOptimizer state_of_megatron(const Folder& folder, const ModelConfig& config, bool with_main) {
  const std::string state = kStateOfMegatron;
  require(!has_prefix(*folder, "optimizer.distributed."),
          "its distributed optimizer was saved as flat buffers, which only the layout that wrote them can tell apart;"
          " save it with --dist-ckpt-optim-fully-reshardable");
  require(!has_prefix(*folder, "chained_"), "it is that of several optimizers");
  require(has_prefix(*folder, state + "exp_avg.") && has_prefix(*folder, state + "exp_avg_sq."),
          "there is no {}exp_avg", state);
  ForeignOptimizer result{.tensors = {}, .step = step_of_megatron(folder->folder()), .left_out_as = {}};
  for (const char* kind : {"exp_avg", "exp_avg_sq"})
    add_megatron_state(folder, config, fmt::format("{}{}.", state, kind), fmt::format("optimizer.{}.", kind), result);
  if (!with_main) return result;
  for (const char* kind : {"fp32_param.", "param."})
    if (has_prefix(*folder, state + kind)) {
      add_megatron_state(folder, config, state + kind, "optimizer.main.", result);
      break;
    }
  return result;
}

// Returns what precedes a weight's name in the names of its state: "optim.state.", "optimizer.state.model.".
std::optional<std::string> lead_of(const DcpFolder& folder, const std::string& weight) {
  const std::string ending = weight + ".exp_avg";
  for (const auto& [name, tensor] : folder.tensors())
    if (name.ends_with(ending)) {
      std::string lead = name.substr(0, name.size() - ending.size());
      if (lead.ends_with('.') && lead.find("state.") != std::string::npos) return lead;
    }
  return std::nullopt;
}

// Reads the part of a state that belongs to one of our tensors; a file may hold several.
at::Tensor read_ours(const DcpFolder& folder, const hf::TensorMapping& mapping, const std::string& name,
                     const hf::GlobalTensor& ours) {
  const at::Tensor whole = at::empty(ours.shape, at::kFloat);
  const auto place = mapping.place({ours.name, ours.shape, std::vector<int64_t>(ours.shape.size(), 0), whole});
  place.data.copy_(folder.read(name, place.offset, place.data.sizes()));
  return whole;
}

ForeignOptimizer state_by_names(const Folder& folder, const ModelConfig& config,
                                const std::shared_ptr<const hf::TensorMapping>& mapping) {
  const std::string& first = mapping->files()[0].name;
  const auto lead = lead_of(*folder, first);
  require(lead.has_value(), "there is no …state.{}.exp_avg", first);
  const hf::DcpTensor* step = folder->find(*lead + first + ".step");
  require(step != nullptr && (step->shape.empty() || step->shape == std::vector<int64_t>{1}), "there is no {}{}.step",
          *lead, first);
  ForeignOptimizer result{
      .tensors = {}, .step = folder->read(*lead + first + ".step").to(at::kDouble).item<int64_t>(), .left_out_as = {}};
  for (const char* kind : {"exp_avg", "exp_avg_sq"})
    for (const hf::GlobalTensor& ours : trained(config)) {
      const hf::FileTensor& file = mapping->file_of(ours.name);
      const std::string name = fmt::format("{}{}.{}", *lead, file.name, kind);
      const hf::DcpTensor* stored = folder->find(name);
      require(stored != nullptr, "{} is missing", name);
      require(stored->shape == file.shape, "{} is [{}], and the weight [{}]", name, fmt::join(stored->shape, ", "),
              fmt::join(file.shape, ", "));
      result.tensors.push_back({fmt::format("optimizer.{}.{}", kind, ours.name), ours.shape,
                                [folder, mapping, name, ours] { return read_ours(*folder, *mapping, name, ours); }});
    }
  return result;
}

}  // namespace

ForeignOptimizer find_foreign_optimizer(const std::shared_ptr<const DcpFolder>& folder, const ModelConfig& config,
                                        const std::shared_ptr<const hf::TensorMapping>& mapping, bool with_main) {
  try {
    return has_megatron_names(*folder) ? state_of_megatron(folder, config, with_main)
                                       : state_by_names(folder, config, mapping);
  } catch (const LeftOut& problem) {
    return {.tensors = {}, .step = 0, .left_out_as = problem.reason};
  } catch (const Error& error) {  // a damaged common.pt
    return {.tensors = {}, .step = 0, .left_out_as = error.what()};
  }
}

}  // namespace megalith::model
