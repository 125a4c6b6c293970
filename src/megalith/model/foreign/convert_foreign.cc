// Two kinds of names are understood. Those of Hugging Face, perhaps after a prefix ("model." of a wrapper): tensors are
// copied one to one. Those of Megatron-Core: each of our tensors is taken out of the one that holds it
// (megatron_names.h) and put at its place in the files. Either way the list of writes is made and checked first.
#include "megalith/model/foreign/convert_foreign.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/hf/foreign/dcp_folder.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/families/family.h"
#include "megalith/model/foreign/foreign_optimizer.h"
#include "megalith/model/foreign/megatron_dcp.h"
#include "megalith/model/foreign/megatron_names.h"
#include "megalith/model/foreign/megatron_ranks.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
constexpr const char* kMcoreAdapterConfig = "mca_config.json";
constexpr uint64_t kLongestTracker = 100;  // bytes

bool is_checkpoint(const fs::path& folder) { return hf::is_dcp_folder(folder) || is_megatron_rank_folder(folder); }

// The tensors of the files, and what fills them.
struct Plan {
  struct Write {
    std::vector<std::string> files;  // the tensor and copies of it
    std::vector<int64_t> offset;
    std::function<at::Tensor()> load;
  };
  std::vector<hf::WeightSpec> specs;
  std::vector<Write> writes;
  at::ScalarType dtype = at::kFloat;  // that config.json names
  int64_t left_out = 0;               // tensors and files of the optimizer
};

// Problems of all kinds, for one message.
struct Problems {
  std::vector<std::string> missing, unexpected, misshapen;

  void throw_if_any(const fs::path& folder) const {
    std::string message;
    const auto add = [&](const char* kind, const std::vector<std::string>& names) {
      if (!names.empty()) message += fmt::format("\n  {} ({}): {}", kind, names.size(), list_in_words(names, 20));
    };
    add("missing", missing);
    add("unexpected", unexpected);
    add("of another shape", misshapen);
    check<DataError>(message.empty(), "the weights in {} are not those of the model that config.json describes:{}",
                     folder.string(), message);
  }
};

hf::Dtype file_dtype(at::ScalarType own, const ForeignOptions& options) {
  return hf::dtype_of(options.dtype.value_or(own));
}

// ---- Names of Hugging Face ----

// Returns what precedes the names of Hugging Face in a checkpoint, by the name of one tensor of the model.
std::optional<std::string> prefix_of(const hf::DcpFolder& folder, const std::string& name) {
  for (const auto& [stored, tensor] : folder.tensors()) {
    if (stored.starts_with("optim") || !stored.ends_with(name)) continue;
    std::string prefix = stored.substr(0, stored.size() - name.size());
    if (prefix.empty() || prefix.ends_with('.')) return prefix;
  }
  return std::nullopt;
}

// Whether a name is one of those that files may have beside weights.
bool is_ignored(const hf::NameMap& names, std::string_view name) {
  return std::ranges::any_of(names.ignored, [&](const std::string& pattern) {
    return pattern.starts_with('*') ? name.ends_with(std::string_view(pattern).substr(1)) : name == pattern;
  });
}

Plan plan_by_file_names(const std::shared_ptr<const hf::DcpFolder>& folder, const ModelConfig& config,
                        const hf::TensorMapping& mapping, const ForeignOptions& options) {
  const auto prefix = prefix_of(*folder, mapping.files()[0].name);
  std::vector<std::string> some;
  for (const auto& [name, tensor] : folder->tensors()) some.push_back(name);
  check<DataError>(
      prefix.has_value(),
      "{}: its tensors have names that are neither those of Hugging Face ({}) nor those of Megatron-Core: {}",
      folder->folder().string(), mapping.files()[0].name, list_in_words(some, 8));
  Plan plan;
  Problems problems;
  std::set<std::string> used, first_words;
  for (const hf::FileTensor& file : mapping.files()) {
    const std::string stored = *prefix + file.name;
    used.insert(stored);
    for (const std::string& copy : file.copies) used.insert(*prefix + copy);
    first_words.insert(*prefix + file.name.substr(0, file.name.find('.') + 1));
    const hf::DcpTensor* tensor = folder->find(stored);
    if (!tensor) {
      problems.missing.push_back(stored);
      continue;
    }
    if (tensor->shape != file.shape) problems.misshapen.push_back(stored);
    if (plan.writes.empty()) plan.dtype = tensor->dtype;
    Plan::Write write{
        {file.name}, std::vector<int64_t>(file.shape.size(), 0), [folder, stored] { return folder->read(stored); }};
    write.files.insert(write.files.end(), file.copies.begin(), file.copies.end());
    for (const std::string& name : write.files)
      plan.specs.push_back({name, file_dtype(tensor->dtype, options), file.shape});
    plan.writes.push_back(std::move(write));
  }
  const hf::NameMap names = name_map(config);
  for (const auto& [name, tensor] : folder->tensors()) {
    if (used.contains(name)) continue;
    const bool is_weight =
        std::ranges::any_of(first_words, [&](const std::string& word) { return name.starts_with(word); });
    if (!is_weight)
      ++plan.left_out;
    else if (!is_ignored(names, std::string_view(name).substr(prefix->size())))
      problems.unexpected.push_back(name);
  }
  problems.throw_if_any(folder->folder());
  return plan;
}

// ---- Names of Megatron-Core ----

// Returns the settings that keep weights in a form which is not read: those of Megatron-LM's arguments, and those that
// mcore_adapter writes beside the folders of its iterations.
std::vector<std::string> unread_settings(const MegatronModel& model, const fs::path& folder) {
  std::vector<std::string> found = model.unread_arguments();
  for (const fs::path& place : {folder, folder.parent_path()}) {
    if (!fs::exists(place / kMcoreAdapterConfig)) continue;
    const io::JsonFields settings = io::read_json_file(place / kMcoreAdapterConfig).fields();
    for (const char* name : {"layernorm_zero_centered_gamma", "rotary_interleaved"})
      if (settings.optional<bool>(name).value_or(false)) found.emplace_back(name);
    break;
  }
  return found;
}

Plan plan_by_modules(const std::shared_ptr<const MegatronModel>& model, const ModelConfig& config,
                     const hf::TensorMapping& mapping, const ForeignOptions& options, const fs::path& folder) {
  const std::vector<std::string> unread = unread_settings(*model, folder);
  check<ConfigError>(unread.empty(),
                     "{} was trained with {}, which keeps norms or rotary weights in a form that is not read here;"
                     " convert it with the tools of the program that wrote it",
                     folder.string(), list_in_words(unread, 8));
  Plan plan;
  Problems problems;
  std::set<std::string> used, planned;
  for (const hf::GlobalTensor& ours : global_tensors(config)) {
    const MegatronSource source = megatron_source(*model, config, ours);
    const bool is_new = used.insert(source.name).second;  // q, k and v share a tensor, and so do gate and up
    if (!model->has(source.name)) {
      if (is_new) problems.missing.push_back(source.name);
      continue;
    }
    if (const std::string problem = model->problem(source.name, source.shape, source.parts); !problem.empty()) {
      if (is_new) problems.misshapen.push_back(problem);
      continue;
    }
    const hf::FileTensor& file = mapping.file_of(ours.name);
    Plan::Write write{{file.name}, {}, {}};
    write.files.insert(write.files.end(), file.copies.begin(), file.copies.end());
    if (planned.insert(file.name).second)
      for (const std::string& name : write.files)
        plan.specs.push_back({name, file_dtype(model->dtype(source.name), options), file.shape});
    // The place is that of a tensor of this shape; `load` makes the elements.
    const std::vector<int64_t> begin(ours.shape.size(), 0);
    const at::Tensor empty = at::empty(ours.shape, at::TensorOptions(at::kFloat).device(at::kMeta));
    write.offset = mapping.place({ours.name, ours.shape, begin, empty}).offset;
    write.load = [model, source, file, shape = ours.shape] {
      return hf::oriented(file, source.take(model->whole(source.name, source.shape, source.parts)).reshape(shape));
    };
    if (plan.writes.empty()) plan.dtype = model->dtype(source.name);
    plan.writes.push_back(std::move(write));
  }
  for (const std::string& name : model->names())
    // Stages of a pipeline keep a copy of a tied embedding under the name of the head.
    if (!used.contains(name) && !(config.tied_embeddings && name == "output_layer.weight"))
      problems.unexpected.push_back(name);
  problems.throw_if_any(folder);
  plan.left_out = model->optimizer_tensors();
  return plan;
}

// ---- Both ----

// Returns the folder with the config.json of the model.
fs::path config_folder(const fs::path& path, const fs::path& found, const ForeignOptions& options) {
  if (!options.config.empty()) return options.config;
  for (const fs::path& folder : {found, path, found.parent_path()})
    if (fs::exists(folder / "config.json")) return folder;
  throw ConfigError(fmt::format(
      "{} has no config.json, so the family and the sizes of its model are unknown; give the folder of a Hugging Face"
      " model like it, with its tokenizer, as config_path",
      path.string()));
}

// The configuration of the weights: without multi-token-prediction layers if the checkpoint lacks them.
ModelConfig described_model(const fs::path& folder, const std::function<bool(std::string_view)>& has_part) {
  ModelConfig config = read_model_config(folder);
  check<ConfigError>(!config.vision && !config.audio && name_map(config).carried.empty(),
                     "{} models have towers, which are not read from checkpoints of other programs; convert the"
                     " checkpoint with the program that wrote it",
                     config.family);
  if (config.mtp_layers > 0 && !has_part("mtp.") && !has_part(fmt::format("layers.{}.", config.num_layers)))
    config.mtp_layers = 0;
  return config;
}

void write(const Plan& plan, const fs::path& folder, hf::WeightWriter& writer) {
  const at::NoGradGuard no_grad;
  writer.create_files();
  TaskProgress progress("converting", TaskProgress::Unit::kCount, std::ssize(plan.writes), "tensors");
  for (const Plan::Write& each : plan.writes) {
    const at::Tensor values = each.load();
    check<DataError>(at::isFloatingType(values.scalar_type()), "{}: {} holds {}, which are not weights",
                     folder.string(), each.files[0], toString(values.scalar_type()));
    for (const std::string& name : each.files) writer.write(name, each.offset, values);
    progress.add(1);
  }
  writer.sync();
  writer.write_index();
}

// Returns the state of the optimizer. Says why it is left out if there is one that cannot be used.
std::optional<ForeignOptimizer> optimizer_of(const std::shared_ptr<const hf::DcpFolder>& dcp, const ModelConfig& config,
                                             const std::shared_ptr<const hf::TensorMapping>& mapping, const Plan& plan,
                                             const fs::path& folder) {
  if (plan.left_out == 0) return std::nullopt;
  const bool with_main =
      std::ranges::any_of(plan.specs, [](const auto& spec) { return spec.dtype != hf::Dtype::kF32; });
  ForeignOptimizer found{.tensors = {}, .step = 0, .left_out_as = "it is in files of single ranks"};
  if (dcp) found = find_foreign_optimizer(dcp, config, mapping, with_main);
  if (found.left_out_as.empty()) return found;
  log_info(
      "{}: the state of the optimizer and of the run ({} tensors or files) is left out: {}; only weights are"
      " converted",
      folder.string(), plan.left_out, found.left_out_as);
  return std::nullopt;
}

void write_optimizer(const ForeignOptimizer& optimizer, const fs::path& folder, uint64_t max_shard_bytes) {
  const at::NoGradGuard no_grad;
  std::vector<hf::WeightSpec> specs;
  for (const ForeignOptimizer::Tensor& tensor : optimizer.tensors)
    specs.push_back({tensor.name, hf::Dtype::kF32, tensor.shape});
  hf::WeightWriter writer(folder, specs, {.max_shard_bytes = max_shard_bytes, .stem = "optimizer"});
  writer.create_files();
  TaskProgress progress("converting the optimizer", TaskProgress::Unit::kCount, std::ssize(specs), "tensors");
  for (const ForeignOptimizer::Tensor& tensor : optimizer.tensors) {
    writer.write(tensor.name, tensor.load());
    progress.add(1);
  }
  writer.sync();
  writer.write_index();
}

}  // namespace

std::optional<fs::path> find_foreign_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::nullopt;
  if (is_checkpoint(path)) return path;
  if (!fs::exists(path / kTracker)) return std::nullopt;
  const std::string text(trim(io::read_text_file(path / kTracker, kLongestTracker)));
  const auto iteration = parse_int(text);
  const fs::path folder = path / (iteration ? fmt::format("iter_{:07}", *iteration) : text);
  const bool is_release = iteration || text == "release";
  return is_release && is_checkpoint(folder) ? std::optional(folder) : std::nullopt;
}

ForeignReport convert_foreign_checkpoint(const fs::path& path, const fs::path& target, const ForeignOptions& options) {
  const auto folder = find_foreign_checkpoint(path);
  check<DataError>(folder.has_value(), "{} is not a checkpoint of torch.distributed.checkpoint or Megatron",
                   path.string());
  const fs::path described = config_folder(path, *folder, options);
  std::shared_ptr<const hf::DcpFolder> dcp;
  std::shared_ptr<const MegatronModel> model;
  if (hf::is_dcp_folder(*folder)) {
    dcp = std::make_shared<const hf::DcpFolder>(*folder);
    if (has_megatron_names(*dcp)) model = std::make_shared<const MegatronDcp>(*dcp);
  } else {
    model = std::make_shared<const MegatronRanks>(*folder);
  }
  const ModelConfig config = described_model(described, [&](std::string_view part) {
    const auto has = [&](const std::string& name) { return name.find(part) != std::string::npos; };
    if (model) return std::ranges::any_of(model->names(), has);
    return std::ranges::any_of(dcp->tensors(), [&](const auto& each) { return has(each.first); });
  });
  const auto mapping = std::make_shared<const hf::TensorMapping>(name_map(config), global_tensors(config));
  const Plan plan = model ? plan_by_modules(model, config, *mapping, options, *folder)
                          : plan_by_file_names(dcp, config, *mapping, options);
  const std::optional<ForeignOptimizer> optimizer = optimizer_of(dcp, config, mapping, plan, *folder);

  // From here on something is written, so all checks are above.
  io::StagedFolder staged(target, "convert", {.overwrite = options.overwrite});
  hf::WeightWriter writer(staged.path(), plan.specs, {.max_shard_bytes = options.max_shard_bytes});
  write(plan, *folder, writer);
  io::write_text_file(staged.path() / "config.json", config_json(config, options.dtype.value_or(plan.dtype)));
  copy_assets(described, staged.path(), config);
  if (optimizer) write_optimizer(*optimizer, staged.path(), options.max_shard_bytes);
  staged.commit();
  return {
      {static_cast<int64_t>(plan.specs.size()), writer.total_bytes(), static_cast<int64_t>(writer.file_names().size())},
      optimizer ? std::optional(optimizer->step) : std::nullopt};
}

}  // namespace megalith::model
