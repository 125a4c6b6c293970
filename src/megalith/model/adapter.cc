// Adapters of models. Names, shapes and targets come from the layers themselves: look_at_whole() builds the model on
// the meta device, without memory and for one rank, and every question about the whole model (which tensors an adapter
// has, whether a target exists) is answered from its parameters. Values are read and written like weights
// (pretrained.cc): each rank handles the rectangles that it holds.
#include "megalith/model/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ranges>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/io/file_io.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/adapter_start.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/families/value_head.h"
#include "megalith/model/weight_check.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/nn/parameter/matrix.h"
#include "megalith/peft/adapter_files.h"
#include "megalith/peft/names.h"
#include "megalith/peft/targets.h"
#include "megalith/peft/written_config.h"

namespace megalith::model {

namespace fs = std::filesystem;

namespace {

// Whether a parameter belongs to an adapter: one of its factors, a module to save, or a bias.
bool is_trained(const nn::Parameter& parameter) { return parameter.value.requires_grad(); }

// Whether the adapter trains this tensor of a parameter that is trained: a bias may be trained in part.
bool is_trained(const nn::Parameter& parameter, const nn::ParameterPart& part, const hf::NameMap& names,
                const peft::AdapterConfig& adapter) {
  return parameter.spec.role == nn::ParameterRole::kAdapter || peft::trains_whole(names, part.name, adapter);
}

// Calls look(parameter) for every parameter of the whole model, built on one rank without memory. `choice` is
// ModelOptions::trained_layers.
template <typename Look>
void look_at_whole(const ModelConfig& config, const std::optional<peft::AdapterConfig>& adapter, const Look& look,
                   const std::optional<LayerChoice>& choice = {}) {
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext alone(*worlds[0], layout::RankGrid(layout::GridShape{}));
  ModelOptions options;
  options.device = at::kMeta;
  options.adapter = adapter;
  options.trained_layers = choice;
  const GptModel model(config, options, ChunkPlace::whole(config), alone);
  for (const auto& parameter : model.parameters().all()) look(*parameter);
}

// Returns the embedding and the head, as far as the adapter does not train them.
std::set<std::string> untrained_vocabulary(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::set<std::string> names;
  look_at_whole(config, adapter, [&](const nn::Parameter& parameter) {
    const std::string& name = parameter.spec.parts[0].name;
    if (!is_trained(parameter) && parameter.attached.update == nullptr && has_vocabulary_rows(name, config))
      names.insert(name);
  });
  return names;
}

// Returns the buffers of modules that the adapter saves: a router's balancing biases. peft keeps all of such a module,
// and does not load it without them.
std::set<std::string> saved_buffers(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::set<std::string> found;
  if (adapter.modules_to_save.empty()) return found;
  const hf::NameMap names = module_names(config);
  look_at_whole(config, std::nullopt, [&](const nn::Parameter& parameter) {
    const std::string& name = parameter.spec.parts[0].name;
    const bool own = adapter.on_mtp || !parameter.spec.name.starts_with("mtp.");
    if (own && parameter.spec.role == nn::ParameterRole::kBuffer &&
        peft::is_saved(peft::module_of(names, name), adapter))
      found.insert(name);
  });
  return found;
}

// Whether the model has rows that the vocabulary of its base lacks.
bool has_grown(const ModelConfig& config) {
  const io::Json* in_base = config_value(config, "vocab_size");
  return in_base && in_base->is_number_integer() && in_base->get<int64_t>() < config.vocab_size;
}

// Calls look(rows) for every tensor of an adapter's files that has the size of the vocabulary.
template <typename Look>
void look_at_vocabulary(const hf::WeightFiles& files, const ModelConfig& config, const Look& look) {
  for (const hf::NameRule& rule : module_names(config).rules) {
    if (!has_vocabulary_rows(rule.ours[0], config)) continue;
    const peft::UpdateNames names = peft::update_names(rule.theirs);
    for (const auto& [name, dim] : {std::pair(names.whole, size_t{0}), {names.b, 0}, {names.lookup_a, 1}})
      if (const hf::TensorInfo* info = files.find(name); info && info->shape.size() == 2) look(info->shape[dim]);
  }
}

// Returns the tensors that stand in an adapter's files as a whole although it does not train them: of the vocabulary,
// and buffers.
std::set<std::string> frozen_in_files(const hf::WeightFiles& files, const ModelConfig& config,
                                      const peft::AdapterConfig& adapter) {
  std::set<std::string> names = untrained_vocabulary(config, adapter);
  names.merge(saved_buffers(config, adapter));
  std::erase_if(names, [&](const std::string& name) {
    const auto theirs = hf::their_name(module_names(config), name);
    return !theirs || !files.contains(peft::update_names(*theirs).whole);
  });
  return names;
}

bool is_mtp_name(const std::string& ours) { return ours.starts_with("mtp."); }

// The weights that an adapter may update.
std::vector<peft::Weight> whole_weights(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::vector<peft::Weight> weights;
  look_at_whole(config, std::nullopt, [&](const nn::Parameter& parameter) {
    if (is_mtp_name(parameter.spec.name) && !adapter.on_mtp) return;
    for (const auto& part : parameter.spec.parts) weights.push_back({part.name, parameter.spec.use});
  });
  return weights;
}

// peft saves an embedding or a head with an update as well; what it saved replaces that of the base model.
void read_base_layers(const ModelConfig& config, const hf::WeightFiles& files,
                      const std::vector<nn::Parameter*>& parameters, std::vector<hf::NonFiniteValues>& not_finite) {
  const hf::TensorMapping base(module_names(config), global_tensors(config));
  for (nn::Parameter* parameter : parameters) {
    const std::string& name = parameter->spec.parts[0].name;
    if (is_trained(*parameter) || parameter->value.is_meta() || !base.holds(name)) continue;
    const hf::FileTensor& file = base.file_of(name);
    const hf::TensorInfo* saved = files.find(file.name);
    if (saved == nullptr) continue;
    check<DataError>(
        saved->shape == file.shape,
        "the adapter {} holds {} as [{}], and the model needs [{}]: the vocabulary was resized; resize that of"
        " the model (megalith convert --vocab_size) first",
        files.folder().string(), file.name, fmt::join(saved->shape, ", "), fmt::join(file.shape, ", "));
    base.read(files, parameter->sharded(), &not_finite);
  }
}

// Returns the configuration that describes a file: peft 0.19 and older versions leave the biases of "lora_only" out.
// They are those of the base model then, as for peft.
peft::AdapterConfig with_biases_in(const hf::WeightFiles& files, peft::AdapterConfig adapter) {
  const bool any = std::ranges::any_of(files.names(), [](const std::string& name) { return name.ends_with(".bias"); });
  if (!any) adapter.biases = peft::TrainedBiases::kNone;
  return adapter;
}

// Reads the tensors of a parameter that the mapping holds. Padding becomes zero.
void read_parameter(const hf::TensorMapping& mapping, const hf::WeightFiles& files, nn::Parameter& parameter,
                    std::vector<hf::NonFiniteValues>& not_finite) {
  std::vector<parallel::ShardedTensor> held = parameter.sharded();
  if (std::erase_if(held, [&](const auto& part) { return !mapping.holds(part.name); }) == 0) parameter.value.zero_();
  mapping.read(files, held, &not_finite);
}

// Returns the configuration of a model that has the multi-token-prediction layers of its config.json, although this run
// may do without them.
ModelConfig with_described_mtp(ModelConfig config) {
  const Family* family = find_family(config);
  if (config.mtp_layers > 0 || family == nullptr) return config;
  const io::Json* described = config_value(config, family->mtp_key);
  if (described != nullptr && described->is_number_integer()) config.mtp_layers = described->get<int64_t>();
  return config;
}

// Returns the names in an adapter's file of the tensors that belong to multi-token-prediction layers.
std::set<std::string> mtp_names(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::vector<hf::GlobalTensor> tensors = adapter_tensors(config, adapter);
  std::erase_if(tensors, [](const hf::GlobalTensor& tensor) { return !is_mtp_name(tensor.name); });
  const hf::TensorMapping mapping(peft::adapter_names(module_names(config)), tensors);
  std::set<std::string> names;
  for (const hf::FileTensor& file : mapping.files()) names.insert(file.name);
  return names;
}

// Whether the head of a model is the value head in the folder of an adapter.
bool brings_value_head(const fs::path& folder, const ModelConfig& config) {
  return config.num_labels == 1 && has_value_head(folder);
}

// Returns the mapping for reading an adapter. A model without the multi-token-prediction layers on which it was trained
// ignores their tensors. A value head is not in the adapter's own file.
hf::TensorMapping reading_mapping(const ModelConfig& config, const peft::AdapterConfig& adapter, const fs::path& folder,
                                  const std::set<std::string>& frozen) {
  hf::NameMap names = peft::adapter_names(module_names(config));
  if (const ModelConfig described = with_described_mtp(config); described.mtp_layers > config.mtp_layers)
    for (const std::string& name : mtp_names(described, resolve_targets(peft::read_adapter_config(folder), described)))
      names.ignored.push_back(name);
  std::vector<hf::GlobalTensor> tensors = adapter_tensors(config, adapter, frozen);
  if (brings_value_head(folder, config))
    std::erase_if(tensors, [](const hf::GlobalTensor& tensor) { return tensor.name == kScoreWeight; });
  return {names, tensors};
}

// An adapter that was trained with multi-token-prediction layers names modules that only these have (their projection).
// A model without them does without such targets.
void drop_absent_mtp_targets(peft::AdapterConfig& adapter, const ModelConfig& config,
                             const std::vector<peft::Weight>& weights) {
  const ModelConfig described = with_described_mtp(config);
  if (described.mtp_layers == config.mtp_layers) return;
  const std::vector<peft::Weight> all = whole_weights(described, adapter);
  const auto finds = [](const std::string& target, const std::vector<peft::Weight>& among, const hf::NameMap& names) {
    peft::AdapterConfig one;
    one.target_modules = {target};
    return std::ranges::any_of(among, [&](const peft::Weight& weight) {
      return weight.use != nn::WeightUse::kOther && peft::update_of(names, weight.name, one).has_value();
    });
  };
  const hf::NameMap here = module_names(config), there = module_names(described);
  std::erase_if(adapter.target_modules,
                [&](const std::string& target) { return finds(target, all, there) && !finds(target, weights, here); });
}

// Reads the files of an adapter into those of `parameters` that belong to it. Adds values that are not finite to
// `not_finite`.
void read_adapter(const ModelConfig& config, const peft::AdapterConfig& adapter, const fs::path& folder,
                  const std::vector<nn::Parameter*>& parameters, std::vector<hf::NonFiniteValues>& not_finite) {
  const at::NoGradGuard no_grad;
  const auto files = peft::open_adapter(folder, adapter, module_names(config));
  // Names, shapes and transposes of peft's file; the same mapping serves writing.
  const std::set<std::string> frozen = frozen_in_files(*files, config, adapter);
  const hf::TensorMapping mapping = reading_mapping(config, with_biases_in(*files, adapter), folder, frozen);
  mapping.check_files(*files,
                      fmt::format("those of an adapter for this {} model ({} layers of width {}) with the rank and"
                                  " the targets of {}",
                                  config.family, config.num_layers, config.hidden_size, peft::kConfigName));
  for (nn::Parameter* parameter : parameters) {
    const bool in_files = is_trained(*parameter) || frozen.contains(parameter->spec.parts[0].name);
    if (!in_files || parameter->value.is_meta()) continue;
    read_parameter(mapping, *files, *parameter, not_finite);
  }
  if (brings_value_head(folder, config))
    for (const nn::Parameter* parameter : parameters) fill_from_value_head(*parameter, folder);
  read_base_layers(config, *files, parameters, not_finite);
}

// Those two modules are recomputed by code of their own, which does not restore the generator as nn::recompute does.
void check_recompute(const ModelOptions& options) {
  check<ConfigError>(
      !options.adapter || options.adapter->dropout == 0 ||
          (!options.recompute.mla_up_proj && !options.moe.recompute_shared),
      "lora_dropout {} does not work with recompute_modules mla_up_proj or shared_experts, which do not repeat the"
      " random numbers of the first pass; use recompute_granularity full, or set lora_dropout to 0",
      options.adapter ? options.adapter->dropout : 0);
}

}  // namespace

std::vector<hf::GlobalTensor> adapter_tensors(const ModelConfig& config, const peft::AdapterConfig& adapter,
                                              const std::set<std::string>& frozen) {
  std::vector<hf::GlobalTensor> tensors;
  const hf::NameMap names = module_names(config);
  look_at_whole(config, adapter, [&](const nn::Parameter& parameter) {
    for (const auto& part : parameter.spec.parts)
      if ((is_trained(parameter) && is_trained(parameter, part, names, adapter)) || frozen.contains(part.name))
        tensors.push_back({part.name, part.global_shape});
  });
  return tensors;
}

hf::TensorMapping adapter_mapping(const ModelConfig& config, const peft::AdapterConfig& adapter,
                                  const std::set<std::string>& frozen) {
  return {peft::adapter_names(module_names(config)), adapter_tensors(config, adapter, frozen)};
}

int64_t adapter_vocab_size(const fs::path& folder, const ModelConfig& config) {
  const auto files = peft::open_adapter(folder, peft::read_adapter_config(folder), module_names(config));
  int64_t rows = 0;
  look_at_vocabulary(*files, config, [&](int64_t size) { rows = std::max(rows, size); });
  return rows;
}

int64_t vocab_size_for(const AdapterSource& source, const ModelConfig& config) {
  int64_t rows = config.vocab_size;
  for (const fs::path& folder : source.merged) rows = std::max(rows, adapter_vocab_size(folder, config));
  if (source.trained) rows = std::max(rows, adapter_vocab_size(*source.trained, config));
  return rows;
}

std::vector<std::string> vocabulary_modules(const ModelConfig& config) {
  std::vector<std::string> modules;
  for (const char* name : {"embedding.weight", "head.weight"}) {
    if (!has_vocabulary_rows(name, config)) continue;
    const std::string module = peft::module_of(module_names(config), name);
    // A tied head has no tensor of its own, but peft's configuration names it.
    modules.push_back(module.empty() ? "lm_head" : module.substr(module.rfind('.') + 1));
  }
  return modules;
}

// Programs name modules with more or fewer prefixes than files do, so only the words that tell parts apart are used.
std::string excluded_modules(const ModelConfig& config, const FreezePlan& freeze) {
  if (!config.media) return "";
  const bool tower = !config.vision || freeze.vision_tower, projector = !config.vision || freeze.projector;
  std::vector<std::string> parts{"(.*[.])?(talker|code2wav)[.].*"};
  const bool all = !config.audio || (freeze.vision_tower && freeze.projector);
  parts.emplace_back(all                   ? "(.*[.])?audio_tower[.].*"
                     : freeze.vision_tower ? "(.*[.])?audio_tower[.](conv.*|layers[.].*)"
                     : freeze.projector    ? "(.*[.])?audio_tower[.](conv2d.*|proj[12])"
                                           : "(.*[.])?audio_tower[.]conv2d.*");
  parts.emplace_back(tower && projector ? "(.*[.])?visual[.].*"
                     : tower            ? "(.*[.])?visual[.](patch_embed|blocks|deepstack_merger_list|merger_list)[.].*"
                     : projector        ? "(.*[.])?visual[.](patch_embed|merger)[.].*"
                                        : "(.*[.])?visual[.]patch_embed[.].*");
  if (freeze.language_model)
    parts.emplace_back("(thinker[.])?(model[.](language_model[.])?(embed_tokens|layers[.].*)|lm_head)");
  return fmt::format("{}", fmt::join(parts, "|"));
}

peft::AdapterConfig resolve_targets(peft::AdapterConfig adapter, const ModelConfig& config) {
  const hf::NameMap names = module_names(config);
  adapter = peft::with_newer_names(std::move(adapter), names);
  const std::vector<peft::Weight> weights = whole_weights(config, adapter);
  if (adapter.source) drop_absent_mtp_targets(adapter, config, weights);
  adapter = peft::with_targets(std::move(adapter), names, weights);
  look_at_whole(config, adapter, [](const nn::Parameter&) {});  // throws if a layer cannot take the adapter
  return adapter;
}

// peft knows models without multi-token-prediction layers, and its adapters have none of their tensors.
peft::AdapterConfig read_adapter_for(const fs::path& folder, const ModelConfig& config) {
  peft::AdapterConfig adapter = peft::read_adapter_config(folder);
  if (config.mtp_layers == 0) return resolve_targets(std::move(adapter), config);
  const peft::AdapterConfig resolved = resolve_targets(adapter, config);
  const auto files = peft::open_adapter(folder, resolved, module_names(config));
  const std::set<std::string> names = mtp_names(config, resolved);
  adapter.on_mtp = std::ranges::any_of(names, [&](const std::string& name) { return files->contains(name); });
  return resolve_targets(std::move(adapter), config);
}

peft::AdapterConfig adapter_config(const AdapterSource& source, const ModelConfig& config) {
  if (!source.trained) return resolve_targets(source.fresh, config);
  peft::AdapterConfig adapter = read_adapter_for(*source.trained, config);
  if (!brings_value_head(*source.trained, config)) return adapter;
  adapter.modules_to_save.emplace_back(kScoreModule);
  adapter.scores_sequences = true;
  return adapter;
}

ModelConfig with_head_of(const AdapterSource& source, ModelConfig config) {
  if (config.num_labels != 1) return config;
  std::vector<fs::path> folders = source.merged;
  if (source.trained) folders.push_back(*source.trained);
  for (const fs::path& folder : folders | std::views::reverse) {
    if (has_value_head(folder))
      return with_score_bias(std::move(config), read_value_head(folder, config.hidden_size).bias);
    const peft::AdapterConfig adapter = peft::read_adapter_config(folder);
    if (!peft::is_saved(kScoreModule, adapter)) continue;
    const auto bias = adapter.source->find(kScoreBias);
    const bool given = bias != adapter.source->end() && bias->is_number();
    return with_score_bias(std::move(config), given ? std::optional(bias->get<double>()) : std::nullopt);
  }
  return config;
}

VirtualModels with_adapter(const fs::path& folder, const ModelSettings& settings, parallel::ParallelContext& context,
                           const AdapterSource& source, const std::shared_ptr<const Family>& own) {
  const ModelConfig in_files =
      source.fresh_base || own ? read_model_config(folder, own) : read_pretrained_config(folder);
  ModelConfig config = with_head_of(source, settings.overrides.applied_to(in_files));
  config.vocab_size = vocab_size_for(source, config);
  ModelOptions options = settings.options;
  AdapterSource own_source = source;
  // Layers that the base does not have start from random numbers, which no adapter can be relative to.
  if (!source.fresh_base && config.mtp_layers > in_files.mtp_layers) own_source.fresh.on_mtp = false;
  options.adapter = adapter_config(own_source, config);
  // peft writes the base into adapter_config.json, from which it loads it again.
  if (options.adapter->base_model.empty())
    options.adapter->base_model = source.base_name.empty() ? folder.string() : source.base_name;
  check_recompute(options);
  check<ConfigError>(!options.quantization || !options.adapter->pissa,
                     "an adapter that starts from principal parts (init_lora_weights pissa) takes them off the weights,"
                     " which quantization_bit cannot change; leave out quantization_bit, or convert the adapter"
                     " (pissa_convert)");
  VirtualModels models(config, options, chunk_places(settings.stages, config, context), context);
  if (source.fresh_base)
    models.initialize_parameters(settings.seed);
  else
    load_weights(models, folder, in_files, settings.seed, settings.new_tokens);
  // Merge first: kept originals and the trained adapter build on the merged weights.
  for (const fs::path& merged : source.merged) merge_adapter(models, merged);
  if (source.keep_base)
    for (const auto& chunk : models) chunk->adapters()->keep_originals();
  if (source.trained) {
    restore_start(models, *source.trained);
    load_adapter(models, *source.trained);
  } else {
    initialize_adapter(models, settings.seed);
  }
  return models;
}

void initialize_adapter(const VirtualModels& models, uint64_t seed) {
  for (const nn::Parameter* parameter : models.parameters())
    if (parameter->spec.role == nn::ParameterRole::kAdapter) nn::initialize(*parameter, seed);
  start_adapter(models, seed);
  for (const auto& chunk : models)
    if (chunk->adapters()) chunk->adapters()->start_magnitudes();
}

void load_adapter(const VirtualModels& models, const fs::path& folder) {
  std::vector<hf::NonFiniteValues> not_finite;
  read_adapter(models.config(), adapter_of(models), folder, models.parameters(), not_finite);
  require_finite(not_finite, folder, models.context());
}

namespace {

// Quantized weights cannot take an update: it would have to be rounded to their codes.
void check_takes_updates(const VirtualModels& models) {
  check<ConfigError>(!models[0].options().quantization,
                     "an adapter cannot be merged into quantized weights (quantization_bit). Merge it into the"
                     " original weights: megalith convert --checkpoint_path BASE --adapter_path ADAPTER");
}

}  // namespace

void merge_adapter(const VirtualModels& models, const fs::path& folder) {
  check_takes_updates(models);
  const ModelConfig& config = models.config();
  const peft::AdapterConfig adapter = read_adapter_for(folder, config);
  check_mergeable(adapter, config);
  std::vector<hf::NonFiniteValues> not_finite;
  for (const auto& chunk : models) {
    std::vector<nn::Parameter*> base;
    for (const auto& parameter : chunk->parameters().all())
      if (parameter->spec.role != nn::ParameterRole::kAdapter) base.push_back(parameter.get());
    // A temporary adapter beside the chunk, which may already have another one.
    nn::ParameterSet set(at::kFloat, chunk->parameters().device());
    // fp32 factors: merging adds in fp32 and rounds once.
    peft::Adapters temporary(adapter, module_names(config), chunk->tensor_parallel(), models.context());
    temporary.add(nn::ParameterScope(set), base);
    std::vector<nn::Parameter*> parameters = base;
    for (const auto& parameter : set.all()) parameters.push_back(parameter.get());
    restore_start(temporary, config, folder);
    read_adapter(config, adapter, folder, parameters, not_finite);
    temporary.merge();
  }
  require_finite(not_finite, folder, models.context());
}

bool has_adapter(const VirtualModels& models) { return models[0].adapters() != nullptr; }

const peft::AdapterConfig& adapter_of(const VirtualModels& models) {
  check<ConfigError>(has_adapter(models), "the model has no adapter; ask for the weights of the model");
  return models[0].adapters()->config();
}

std::vector<TrainedTensor> trained_tensors(const VirtualModels& models) {
  const at::ScalarType dtype = models[0].parameters().dtype();
  std::vector<TrainedTensor> tensors;
  // Without an adapter everything is trained except buffers and layers that are not chosen.
  if (!has_adapter(models)) {
    const auto look = [&](const nn::Parameter& parameter) {
      if (parameter.spec.role == nn::ParameterRole::kBuffer || !is_trained(parameter)) return;
      for (const auto& part : parameter.spec.parts)
        tensors.push_back(
            {.tensor = {part.name, part.global_shape}, .dtype = dtype, .matrix = nn::is_matrix(parameter.spec)});
    };
    look_at_whole(models.config(), std::nullopt, look, models[0].options().trained_layers);
    return tensors;
  }
  const hf::NameMap names = module_names(models.config());
  look_at_whole(models.config(), adapter_of(models), [&](const nn::Parameter& parameter) {
    if (!is_trained(parameter)) return;
    for (const auto& part : parameter.spec.parts)
      tensors.push_back({{part.name, part.global_shape},
                         parameter.spec.dtype.value_or(dtype),
                         !is_trained(parameter, part, names, adapter_of(models))});
  });
  return tensors;
}

namespace {

std::set<std::string> frozen_beside(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::set<std::string> names = saved_buffers(config, adapter);
  if (has_grown(config)) names.merge(untrained_vocabulary(config, adapter));
  return names;
}

}  // namespace

AdapterFile::AdapterFile(const VirtualModels& models)
    : adapter_(adapter_of(models)),
      names_(module_names(models.config())),
      frozen_(frozen_beside(models.config(), adapter_)),
      mapping_(adapter_mapping(models.config(), adapter_, frozen_)) {}

std::string AdapterFile::name_of(const hf::FileTensor& tensor) const {
  return peft::written_name(names_, tensor.name, adapter_);
}

bool AdapterFile::has(const nn::Parameter& parameter) const {
  return is_trained(parameter) || frozen_.contains(parameter.spec.parts[0].name);
}

ExportedWeights exported_adapter(const VirtualModels& models) {
  const AdapterFile in_file(models);
  const hf::TensorMapping& mapping = in_file.mapping();
  // A's and B's are fp32 and modules to save have the model's type, so the type is looked up per tensor.
  std::map<std::string, at::ScalarType> types;  // by the name in the mapping
  for (const TrainedTensor& trained : trained_tensors(models))
    if (!trained.frozen) types[mapping.file_of(trained.tensor.name).name] = trained.dtype;
  for (const std::string& name : in_file.frozen())
    types[mapping.file_of(name).name] =
        has_vocabulary_rows(name, models.config()) ? models[0].parameters().dtype() : at::kFloat;
  ExportedWeights weights;
  std::map<std::string, std::string> written;
  for (const hf::FileTensor& tensor : mapping.files()) {
    const std::string& name = written[tensor.name] = in_file.name_of(tensor);
    weights.tensors.push_back({name, hf::dtype_of(types.at(tensor.name)), tensor.shape});
  }
  for (const nn::Parameter* parameter : models.parameters())
    if (in_file.has(*parameter)) add_held(*parameter, mapping, models.context(), weights.held);
  for (hf::HeldRectangle& rectangle : weights.held) rectangle.tensor = written.at(rectangle.tensor);
  return weights;
}

void write_adapter_files(const VirtualModels& models, const peft::AdapterConfig& adapter, const fs::path& folder,
                         const Assets& assets) {
  const ModelConfig& config = models.config();
  const auto [written, problems] = peft::written_config(adapter, module_names(config), whole_weights(config, adapter));
  for (const std::string& problem : problems)
    log_warning(
        "peft cannot load this adapter: {}. megalith convert --adapter_path merges it into a model that every"
        " program loads",
        problem);
  std::string text = peft::to_json(written);
  if (const auto bias = score_bias(config)) {
    io::Json json = io::Json::parse(text);
    json[kScoreBias] = *bias;
    text = json.dump(2) + "\n";
  }
  io::write_text_file(folder / peft::kConfigName, text);
  copy_assets(assets, folder, models.config());
}

void save_adapter(const VirtualModels& models, const fs::path& folder, const SaveAdapterOptions& options) {
  const at::NoGradGuard no_grad;
  const bool converts = options.without_start && has_start(models);
  const peft::AdapterConfig adapter = converts ? peft::without_start(adapter_of(models)) : adapter_of(models);
  // peft expects one file, hence no limit on the size of a shard.
  const bool first = models.context().rank() == 0;
  io::StagedFolder staged(folder, "adapter", {.owner = first, .overwrite = options.overwrite});
  write_weights(models.context(), staged, converts ? converted_adapter(models) : exported_adapter(models),
                {.max_shard_bytes = UINT64_MAX, .stem = peft::kWeightsStem},
                [&] { write_adapter_files(models, adapter, staged.path(), options.assets); });
  if (adapter.pissa)
    write_weights(models.context(), staged, exported_start(models),
                  {.max_shard_bytes = UINT64_MAX, .stem = peft::kStartStem}, [] {});
  commit_export(models.context(), staged);
}

WithoutAdapter::WithoutAdapter(const VirtualModels& models) {
  for (const auto& chunk : models)
    if (chunk->adapters()) off_.emplace_back(*chunk->adapters());
}

void check_mergeable(const peft::AdapterConfig& written, const ModelConfig& config) {
  const hf::NameMap names = module_names(config);
  const peft::AdapterConfig adapter = peft::with_newer_names(written, names);
  const std::string embedding = peft::module_of(names, "embedding.weight");
  check<ConfigError>(
      !config.tied_embeddings || !peft::update_of(names, "embedding.weight", adapter) ||
          peft::is_saved(embedding, adapter),
      "an adapter on {} cannot be merged into a model whose head is the same tensor: merging would change the head,"
      " which the adapter does not update. Keep the adapter separate",
      embedding);
}

WithMergedAdapter::WithMergedAdapter(const VirtualModels& models) {
  const at::NoGradGuard no_grad;
  if (has_adapter(models)) {
    check_takes_updates(models);
    check_mergeable(adapter_of(models), models.config());
  }
  for (const auto& chunk : models) {
    if (!chunk->adapters()) continue;
    for (nn::Parameter* weight : chunk->adapters()->merged_weights())
      // On the host, since device memory is usually full during a run. Subtracting the update again would leave
      // rounding errors.
      originals_.push_back({weight, weight->value.detach().cpu().clone()});
    chunk->adapters()->merge();
  }
}

WithMergedAdapter::~WithMergedAdapter() {
  const at::NoGradGuard no_grad;
  for (const Original& original : originals_) original.parameter->value.copy_(original.value);
}

}  // namespace megalith::model
