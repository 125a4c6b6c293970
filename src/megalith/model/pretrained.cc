// Weights in and out. A TensorMapping (hf/) translates between rectangles of parameters and byte ranges of safetensors
// files, so that loading and exporting are the same for every layout: each rank touches only the ranges of its own
// rectangles, and no tensor is ever gathered.
//
// An export is staged: rank 0 creates the files in their final size, all ranks write into them, and the folder gets its
// name when everything is on disk. Of the data-parallel replicas of a rectangle one writes; which one depends on a hash
// of the tensor's name, so that all ranks share the work.
#include "megalith/model/pretrained.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/file_io.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/families/value_head.h"
#include "megalith/model/quantized/quantized_weights.h"
#include "megalith/model/weight_check.h"
#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/nn/parameter/init.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

// Multi-token-prediction layers and the head that scores sequences are the only parts that files may lack.
bool is_mtp(const nn::Parameter& parameter) { return parameter.spec.name.starts_with("mtp."); }
bool may_be_fresh(const nn::Parameter& parameter) { return is_mtp(parameter) || parameter.spec.name == kScoreWeight; }

// Returns the part of a vocabulary tensor that the files also have.
parallel::ShardedTensor old_rows(parallel::ShardedTensor tensor, int64_t old_vocab) {
  const int64_t rows = std::clamp<int64_t>(old_vocab - tensor.offset[0], 0, tensor.local.size(0));
  tensor.local = tensor.local.narrow(0, 0, rows);
  tensor.global_shape[0] = old_vocab;
  return tensor;
}

// Fills the new rows of an embedding or a head with the mean of the old rows over all ranks, plus noise: the rows from
// old_vocab on, and those of `new_tokens`, which are sorted. Collective.
void fill_new_rows(const parallel::ShardedTensor& tensor, int64_t old_vocab, const std::vector<int64_t>& new_tokens,
                   const comm::Group& tp, uint64_t seed) {
  const int64_t begin = tensor.offset[0], end = begin + tensor.local.size(0);
  const int64_t old_end = std::clamp(old_vocab, begin, end);
  const auto reused_end = std::ranges::lower_bound(new_tokens, old_vocab);  // rows that the files have as well
  at::Tensor sum = tensor.local.narrow(0, 0, old_end - begin).to(at::kDouble).sum(0);
  for (auto row = new_tokens.begin(); row != reused_end; ++row)
    if (*row >= begin && *row < old_end) sum -= tensor.local[*row - begin].to(at::kDouble);
  tp.all_reduce(sum, comm::ReduceOp::kSum, "mean of the vocabulary's rows");
  const at::Tensor mean = sum.div_(static_cast<double>(old_vocab - (reused_end - new_tokens.begin()))).cpu();
  const auto fill = [&](int64_t first, int64_t count) {
    tensor.local.narrow(0, first - begin, count)
        .copy_(new_vocab_rows(mean, tensor.name, tensor.global_shape, first, count, seed));
  };
  for (auto row = new_tokens.begin(); row != reused_end; ++row)
    if (*row >= begin && *row < old_end) fill(*row, 1);
  if (old_end < end) fill(old_end, end - old_end);
}

// Tensors of the same name must have the same shape, whatever else differs between two configurations.
void check_shapes(const std::vector<hf::GlobalTensor>& wanted, const std::vector<hf::GlobalTensor>& stored,
                  const fs::path& folder) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const hf::GlobalTensor& tensor : stored) shapes[tensor.name] = tensor.shape;
  std::vector<std::string> misshapen;
  for (const hf::GlobalTensor& tensor : wanted)
    if (const auto found = shapes.find(tensor.name); found != shapes.end() && found->second != tensor.shape)
      misshapen.push_back(fmt::format("{} is [{}] there and [{}] in this model", tensor.name,
                                      fmt::join(found->second, ", "), fmt::join(tensor.shape, ", ")));
  check<DataError>(misshapen.empty(), "the weights in {} have other shapes: {}", folder.string(),
                   list_in_words(misshapen, 8));
}

// Returns the name of a dtype in config.json.
std::string torch_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      throw ConfigError(fmt::format("weights cannot be exported as {}; use fp32, bf16 or fp16", toString(dtype)));
  }
}

// Sets the dtype of every part of config.json that names one.
void set_nested_dtypes(io::Json& json, const std::string& type) {
  for (auto& [name, part] : json.items()) {
    if (!part.is_object()) continue;
    for (const char* key : {"dtype", "torch_dtype"})
      if (part.contains(key) && part.at(key).is_string()) part[key] = type;
    set_nested_dtypes(part, type);
  }
}

}  // namespace

bool has_vocabulary_rows(const std::string& name, const ModelConfig& config) {
  const Family* family = find_family(config);
  const bool own_head = (family && family->head) || config.num_labels > 0;
  return name == "embedding.weight" || (name == "head.weight" && !own_head);
}

at::Tensor new_vocab_rows(const at::Tensor& mean, const std::string& name, at::IntArrayRef global_shape, int64_t first,
                          int64_t count, uint64_t seed) {
  const int64_t hidden = mean.size(0);
  // The noise depends on the seed, the tensor's name and the row alone, so each rank makes only its own rows and all
  // layouts agree. It keeps new tokens distinct: equal rows would get equal gradients.
  at::Tensor noise = at::empty({count, hidden}, at::kFloat);
  nn::fill_normal(noise, seed, name, global_shape, {first, 0}, 0, 1 / std::sqrt(static_cast<double>(hidden)));
  return noise + mean;
}

ModelConfig read_pretrained_config(const fs::path& folder, const std::shared_ptr<const Family>& own) {
  ModelConfig config = read_model_config(folder, own);
  if (config.mtp_layers == 0 && towers_of(config) == TowerChoice{.vision = false, .audio = false}) return config;
  const hf::WeightFiles files(folder);
  const std::vector<hf::GlobalTensor> tensors = global_tensors(config);
  const hf::TensorMapping mapping(name_map(config), tensors);
  const auto has_any = [&](std::string_view part) {
    return std::ranges::any_of(tensors, [&](const hf::GlobalTensor& tensor) {
      return tensor.name.starts_with(part) && files.contains(mapping.name_in(files, mapping.file_of(tensor.name).name));
    });
  };
  // transformers keeps num_nextn_predict_layers in config.json but does not save the layers; one tensor tells.
  if (config.mtp_layers > 0 && !files.contains(mapping.file_of("mtp.0.projection.weight").name)) config.mtp_layers = 0;
  return with_towers(std::move(config), {.vision = has_any("vision."), .audio = has_any("audio.")});
}

void load_weights(const VirtualModels& models, const fs::path& folder, const ModelConfig& described, uint64_t seed,
                  const std::vector<int64_t>& new_tokens) {
  const at::NoGradGuard no_grad;
  const TowerChoice towers = towers_of(models.config());
  if (towers.vision || towers.audio) require_towers(towers, folder, described.own_family);
  const ModelConfig in_files = with_towers(described, towers);
  const int64_t old_vocab = in_files.vocab_size, vocab = models.config().vocab_size;
  check<ConfigError>(vocab >= old_vocab, "the vocabulary of {} ids cannot shrink to {}; give at least {}", old_vocab,
                     vocab, old_vocab);
  const hf::WeightFiles files(folder);
  const hf::TensorMapping mapping(name_map(in_files), global_tensors(in_files));
  mapping.check_files(files);
  int64_t bytes = 0;
  for (const nn::Parameter* parameter : models.parameters()) bytes += static_cast<int64_t>(parameter->value.nbytes());
  TaskProgress progress("loading weights", TaskProgress::Unit::kBytes, bytes, "", models.context().rank() == 0);
  std::string fresh;  // the first parameter that the files do not have
  std::vector<hf::NonFiniteValues> not_finite;
  for (const nn::Parameter* parameter : models.parameters()) {
    if (parameter->value.is_meta() || parameter->spec.role == nn::ParameterRole::kAdapter) continue;
    if (may_be_fresh(*parameter) && !mapping.holds(parameter->spec.parts[0].name)) {
      nn::initialize(*parameter, seed);
      if (score_bias(models.config()) && has_value_head(folder)) fill_from_value_head(*parameter, folder);
      if (is_mtp(*parameter) && fresh.empty()) fresh = parameter->spec.name;
      continue;
    }
    if (parameter->attached.quantized) {
      load_quantized(*parameter, mapping, files, not_finite);
      progress.add(static_cast<int64_t>(parameter->value.nbytes()));
      continue;
    }
    // A parameter may be several tensors in the model's terms (q, k and v), each of which is a rectangle of its own.
    const at::Tensor value = nn::loadable(*parameter);
    std::vector<parallel::ShardedTensor> parts = parameter->sharded(value);
    int64_t held = 0;
    for (const auto& part : parts) held += part.local.numel();
    if (held < value.numel()) value.zero_();  // rows that no part covers are padding
    for (auto& part : parts)
      if (has_vocabulary_rows(part.name, in_files)) part = old_rows(part, old_vocab);
    mapping.read(files, parts, &not_finite);
    progress.add(static_cast<int64_t>(parameter->value.nbytes()));
    if (vocab == old_vocab && new_tokens.empty()) continue;
    // The mean needs the old rows of all ranks, which are in place only now.
    for (const auto& part : parameter->sharded(value))
      if (has_vocabulary_rows(part.name, in_files))
        fill_new_rows(part, old_vocab, new_tokens, models.context().tp(), seed);
  }
  require_finite(not_finite, folder, models.context());
  if (!fresh.empty())
    log_warning("{} has no multi-token-prediction layers; they start with fresh weights ({}, …)", folder.string(),
                fresh);
}

// Names are compared as ours, because two families may store the same tensor under different names, and told as those
// of the files, which users see.
KeyDifference compare_weights(const VirtualModels& models, const fs::path& folder, const ModelConfig& in_files) {
  const hf::WeightFiles files(folder);
  const std::vector<hf::GlobalTensor> wanted = global_tensors(models.config()), stored = global_tensors(in_files);
  const hf::TensorMapping there(name_map(in_files), stored), here(name_map(models.config()), wanted);
  there.check_stored(files);
  check_shapes(wanted, stored, folder);
  std::set<std::string> absent, read;
  for (const hf::GlobalTensor& tensor : wanted) {
    const bool known = there.holds(tensor.name);
    const std::string name = there.name_in(files, (known ? there : here).file_of(tensor.name).name);
    (known && files.contains(name) ? read : absent).insert(name);
  }
  KeyDifference difference{.absent = {absent.begin(), absent.end()}, .unread = there.unexpected_in(files)};
  for (const hf::FileTensor& file : there.files())
    if (const std::string name = there.name_in(files, file.name); files.contains(name) && !read.contains(name))
      difference.unread.push_back(name);
  std::ranges::sort(difference.unread);
  return difference;
}

void load_common_weights(const VirtualModels& models, const fs::path& folder, const ModelConfig& in_files) {
  const at::NoGradGuard no_grad;
  const hf::WeightFiles files(folder);
  const hf::TensorMapping mapping(name_map(in_files), global_tensors(in_files));
  std::vector<hf::NonFiniteValues> not_finite;
  for (const nn::Parameter* parameter : models.parameters()) {
    if (parameter->value.is_meta() || parameter->spec.role == nn::ParameterRole::kAdapter) continue;
    std::vector<parallel::ShardedTensor> parts = parameter->sharded(nn::loadable(*parameter));
    std::erase_if(parts, [&](const parallel::ShardedTensor& part) {
      return !mapping.holds(part.name) || !files.contains(mapping.name_in(files, mapping.file_of(part.name).name));
    });
    mapping.read(files, parts, &not_finite);
  }
  require_finite(not_finite, folder, models.context());
}

std::string config_json(const ModelConfig& config, at::ScalarType dtype) {
  check<ConfigError>(config.source != nullptr, "a model without a Hugging Face configuration cannot be exported");
  io::Json json = *config.source;
  const std::string type = torch_name(dtype);
  if (json.contains("dtype")) {
    json["dtype"] = type;
  } else {
    json["torch_dtype"] = type;
  }
  const Family& family = family_of(config);
  // Towers, whose tensors are exported in the same type, have a part of config.json each.
  if (!family.names.carried.empty()) set_nested_dtypes(json, type);
  io::Json* text = &json;
  for (const std::string& key : config.text_keys) text = &text->at(key);
  // Whatever the files that were read hold (fp8 with scales, 4 or 8 bits), numbers of the dtype above are written.
  json.erase("quantization_config");
  text->erase("quantization_config");
  (*text)["vocab_size"] = config.vocab_size;
  if (json.contains("vocab_size")) json["vocab_size"] = config.vocab_size;
  if (config.mtp_layers > 0 || text->contains(family.mtp_key)) (*text)[family.mtp_key] = config.mtp_layers;
  write_scores(config, json);
  return json.dump(2) + "\n";
}

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "vocab.json") ||
         fs::exists(folder / "tokenizer.model");
}

void copy_assets(const Assets& assets, const fs::path& to, const ModelConfig& config) {
  // Everything that transformers and this library read beside config.json and weights.
  static const char* const kNames[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "vocab.txt",
                                       "tokenizer.model",
                                       "spiece.model",
                                       "chat_template.json",
                                       "chat_template.jinja",
                                       "preprocessor_config.json",
                                       "video_preprocessor_config.json",
                                       "processor_config.json",
                                       "generation_config.json",
                                       "README.md",
                                       "LICENSE"};
  std::error_code error;
  const fs::path& from = assets.folder;
  if (!from.empty())
    for (const char* name : kNames)
      if (fs::is_regular_file(from / name) && !assets.replaced.contains(name)) {
        fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, error);
        check<DataError>(!error, "cannot copy {} to {}: {}", (from / name).string(), to.string(), error.message());
      }
  for (const auto& [name, text] : assets.replaced) io::write_text_file(to / name, text);
  if (fs::exists(to / "generation_config.json")) return;
  // The file that transformers itself would derive from such a config.json.
  io::Json generation{{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (const io::Json* value = config_value(config, key)) generation[key] = *value;
  if (config.source->contains("transformers_version"))
    generation["transformers_version"] = config.source->at("transformers_version");
  io::write_text_file(to / "generation_config.json", generation.dump(2) + "\n");
}

namespace {

void add_saved(const nn::Parameter& parameter, const nn::SavedShards& saved, const hf::TensorMapping& mapping,
               const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held) {
  // The original on the first stage is exported.
  if (parameter.spec.role == nn::ParameterRole::kTiedCopy) return;
  // The replicas of experts are other ranks than those of the rest of the model.
  const comm::Group replicas = parameter.spec.expert ? context.edp() : context.dp(/*with_cp=*/true);
  const int size = replicas.size();
  for (const auto& part : saved.parts) {
    if (part.local.numel() == 0 || !mapping.holds(part.name)) continue;
    const auto target = mapping.place(part);
    // Replica 0 writes an export. The hash numbers the replicas differently per tensor, so that all share the work;
    // rectangles of the optimizer's shards are divided among the ranks already.
    const int writer = static_cast<int>(fnv1a64(target.file->name) % static_cast<uint64_t>(size));
    const int replica = saved.owned ? part.replica : part.replica * size + (replicas.rank() - writer + size) % size;
    std::function<at::Tensor()> load;
    if (part.load) load = [make = part.load, file = *target.file] { return hf::oriented(file, make()); };
    held.push_back({target.file->name, target.offset, target.data.detach(), replica, load});
    for (const std::string& copy : target.file->copies)
      held.push_back({copy, target.offset, target.data.detach(), replica, load});
  }
}

}  // namespace

void add_held(const nn::Parameter& parameter, const hf::TensorMapping& mapping,
              const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held) {
  add_saved(parameter, nn::saved_shards(parameter), mapping, context, held);
}

void add_held(const nn::Parameter& parameter, const at::Tensor& like_value, const hf::TensorMapping& mapping,
              const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held) {
  add_saved(parameter, {parameter.sharded(like_value)}, mapping, context, held);
}

hf::Dtype carried_dtype(const hf::TensorInfo& tensor, const ModelConfig& config, at::ScalarType dtype) {
  const bool converted = dtype != config.dtype && at::isFloatingType(hf::scalar_type(tensor.dtype));
  return converted ? hf::dtype_of(dtype) : tensor.dtype;
}

namespace {

// Adds the tensors that are carried through (hf::NameMap::carried), to be read from the original folder when they are
// written. The first stage's first tensor-parallel ranks hold them, each a replica of the others.
void add_carried(const ModelConfig& config, const hf::TensorMapping& mapping, const parallel::ParallelContext& context,
                 at::ScalarType dtype, ExportedWeights& weights) {
  if (name_map(config).carried.empty()) return;
  if (config.folder.empty() || !hf::has_weight_files(config.folder)) {
    if (context.rank() == 0)
      log_warning(
          "there are no files with the tensors of this {} model that are not trained (its towers): they are not"
          " written. Copy them into the exported folder, or start from a folder that has them",
          config.family);
    return;
  }
  const auto files = std::make_shared<const hf::WeightFiles>(config.folder);
  const bool holds = context.tp().rank() == 0 && context.pp().rank() == 0;
  const comm::Group replicas = context.dp(/*with_cp=*/true);
  const int size = replicas.size();
  for (const std::string& name : mapping.carried_in(*files)) {
    const hf::TensorInfo& info = *files->find(name);
    weights.tensors.push_back({name, carried_dtype(info, config, dtype), info.shape});
    if (!holds) continue;
    const int writer = static_cast<int>(fnv1a64(name) % static_cast<uint64_t>(size));
    const at::TensorOptions none = at::TensorOptions(hf::scalar_type(info.dtype)).device(at::kMeta);
    weights.held.push_back({name, std::vector<int64_t>(info.shape.size(), 0), at::empty(info.shape, none),
                            (replicas.rank() - writer + size) % size, [files, name] { return files->tensor(name); }});
  }
}

}  // namespace

ExportedWeights exported_weights(const VirtualModels& models, at::ScalarType dtype) {
  const ModelConfig& config = models.config();
  const hf::TensorMapping mapping(name_map(config), global_tensors(config));
  ExportedWeights weights;
  for (const hf::FileTensor& file : mapping.files()) {
    weights.tensors.push_back({file.name, hf::dtype_of(dtype), file.shape});
    for (const std::string& copy : file.copies) weights.tensors.push_back({copy, hf::dtype_of(dtype), file.shape});
  }
  for (const nn::Parameter* parameter : models.parameters())
    if (parameter->spec.role != nn::ParameterRole::kAdapter)
      add_held(*parameter, mapping, models.context(), weights.held);
  add_carried(config, mapping, models.context(), dtype, weights);
  return weights;
}

void write_model_files(const ModelConfig& config, at::ScalarType dtype, const fs::path& folder, const Assets& assets) {
  io::write_text_file(folder / "config.json", config_json(config, dtype));
  copy_assets(assets, folder, config);
}

namespace {

// All ranks write for the time of a `turn`, then synchronize, until no rank has anything left. However long an export
// takes, no rank waits in a collective for much longer than a turn, so that the time limit of collectives does not end
// the run.
void write_in_turns(const comm::Group& everyone, hf::WeightWriter& writer, const std::vector<hf::HeldRectangle>& held,
                    std::chrono::milliseconds turn) {
  int64_t bytes = 0;
  for (const hf::HeldRectangle& each : held)
    if (each.replica == 0) bytes += static_cast<int64_t>(each.data.nbytes());
  TaskProgress progress("writing the model", TaskProgress::Unit::kBytes, bytes, "", everyone.rank() == 0);
  auto next = held.begin();
  bool anything_left = true;
  while (anything_left) {
    const auto end_of_turn = std::chrono::steady_clock::now() + turn;
    bool wrote = false;
    do {
      next = std::find_if(next, held.end(), [](const hf::HeldRectangle& each) { return each.replica == 0; });
      if (next == held.end()) break;
      writer.write(next->tensor, next->offset, next->elements());
      progress.add(static_cast<int64_t>(next->data.nbytes()));
      ++next;
      wrote = true;
    } while (std::chrono::steady_clock::now() < end_of_turn);
    if (wrote) writer.sync();
    // Doubles as the barrier of the turn: nobody continues before all have arrived.
    const at::Tensor left = at::full({1}, held.end() - next, at::TensorOptions(at::kLong).device(everyone.device()));
    everyone.all_reduce(left, comm::ReduceOp::kMax, "export: rectangles left to write");
    anything_left = left.item<int64_t>() > 0;
  }
}

}  // namespace

void write_weights(const parallel::ParallelContext& context, io::StagedFolder& staged, const ExportedWeights& weights,
                   const hf::WeightWriterOptions& options, const std::function<void()>& other_files,
                   std::chrono::milliseconds turn) {
  const comm::Group everyone = context.world().world();
  const bool first = context.rank() == 0;
  hf::WeightWriter writer(staged.path(), weights.tensors, options);
  if (first) {
    writer.create_files();
    other_files();
  }
  // Ranks write into existing files of the final size, at the offsets of their rectangles.
  everyone.barrier("export: files made");
  write_in_turns(everyone, writer, weights.held, turn);
  if (first) writer.write_index();
}

void commit_export(const parallel::ParallelContext& context, io::StagedFolder& staged) {
  staged.commit();
  context.world().world().barrier("export: done");
}

void save_pretrained(const VirtualModels& models, const fs::path& folder, const ExportOptions& options) {
  const at::NoGradGuard no_grad;
  const at::ScalarType dtype = options.dtype.value_or(models.config().dtype);
  io::StagedFolder staged(folder, "export", {.owner = models.context().rank() == 0, .overwrite = options.overwrite});
  write_weights(models.context(), staged, exported_weights(models, dtype), {.max_shard_bytes = options.max_shard_bytes},
                [&] { write_model_files(models.config(), dtype, staged.path(), options.assets); });
  commit_export(models.context(), staged);
}

}  // namespace megalith::model
