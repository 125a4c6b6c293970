// Saves and restores the state of a run. A checkpoint has three groups of tensors, each with its own files
// (docs/checkpoint-format.md): the weights under Hugging Face's names, so that the folder is also a model; the
// optimizer's state, stored by global shape and therefore readable in any layout; and the random states, one per rank,
// which are useful only in the same layout. Small things go into progress.json, trainer_state.json and args.yaml.
#include "megalith/train/run_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/state_files.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/io/file_io.h"
#include "megalith/model/adapter.h"
#include "megalith/model/adapter_start.h"
#include "megalith/model/families/family.h"
#include "megalith/model/fp8/fp8_state.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/weight_check.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/train/saving/key_check.h"

namespace megalith::train {

namespace {

namespace fs = std::filesystem;

// A bound for text files, so that a wrong file cannot exhaust the memory; a log history needs far less.
constexpr uint64_t kMaxTextBytes = 1'000'000'000;
constexpr const char* kFp8 = "fp8";  // stem of the files with fp8 histories

// Returns the optimizer state of the whole model, the same on all ranks.
std::vector<hf::WeightSpec> planned_state(const model::VirtualModels& models, const optim::Optimizer& optimizer) {
  std::vector<hf::WeightSpec> planned;
  for (const auto& [tensor, dtype, frozen, matrix] : model::trained_tensors(models))
    for (const std::string& prefix : optimizer.state_prefixes(dtype, matrix))
      planned.push_back({prefix + tensor.name, hf::Dtype::kF32, tensor.shape});
  return planned;
}

// The plan lists the state of every tensor of the model on all ranks; `held` lists the shards of this rank.
checkpoint::TensorFiles optimizer_files(const model::VirtualModels& models, const optim::Optimizer& optimizer,
                                        bool file_per_writer) {
  checkpoint::TensorFiles files{
      .stem = "optimizer", .tensors = planned_state(models, optimizer), .held = {}, .per_writer = file_per_writer};
  std::set<std::string> planned;
  for (const hf::WeightSpec& tensor : files.tensors) planned.insert(tensor.name);
  for (const parallel::ShardedTensor& part : optimizer.sharded_state())
    if (planned.contains(part.name))
      files.held.push_back({part.name, part.offset, part.local, part.replica, part.load});
  return files;
}

// State of the delayed fp8 recipe; no tensors with other recipes.
checkpoint::TensorFiles fp8_files(const model::VirtualModels& models) {
  checkpoint::TensorFiles files{.stem = kFp8, .tensors = {}, .held = {}};
  for (const hf::GlobalTensor& tensor : model::global_fp8_states(models))
    files.tensors.push_back({tensor.name, hf::Dtype::kF32, tensor.shape});
  for (const parallel::ShardedTensor& part : model::fp8_states(models))
    files.held.push_back({part.name, part.offset, part.local, part.replica});
  return files;
}

// The weights that training changes: those of the model, or those of its adapter.
checkpoint::TensorFiles weight_files(const model::VirtualModels& models, at::ScalarType dtype) {
  const bool adapter = model::has_adapter(models);
  auto [tensors, held] = adapter ? model::exported_adapter(models) : model::exported_weights(models, dtype);
  return {.stem = adapter ? peft::kWeightsStem : "model",
          .tensors = std::move(tensors),
          .held = std::move(held),
          .one_file = adapter};
}

// The factors with which an adapter started: the weights below it follow from them.
checkpoint::TensorFiles start_files(const model::VirtualModels& models) {
  auto [tensors, held] = model::exported_start(models);
  return {.stem = peft::kStartStem, .tensors = std::move(tensors), .held = std::move(held), .one_file = true};
}

// Random states can be restored only into the layout that wrote them; the manifest keeps it for that comparison.
checkpoint::SavedLayout layout_of(const SaveSettings& settings, const parallel::ParallelContext& context) {
  return checkpoint::SavedLayout::of(context.grid().shape(), settings.sharded_optimizer);
}

// "name: value" lines of a YAML file as a map; the file is written by Megalith and has no nesting.
std::map<std::string, std::string> lines_of(const std::string& yaml) {
  std::map<std::string, std::string> lines;
  for (const std::string& line : split(yaml, '\n')) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && !line.starts_with('#'))
      lines[line.substr(0, colon)] = std::string(trim(line.substr(colon + 1)));
  }
  return lines;
}

// A resumed run with other options is allowed, but must not go unnoticed.
void say_what_changed(const fs::path& folder, const std::string& arguments) {
  if (!fs::exists(folder / kArgumentsFile)) return;
  const auto changes = changed_options(io::read_text_file(folder / kArgumentsFile, kMaxTextBytes), arguments);
  log_info("resuming from {}: {}", folder.string(),
           changes.empty() ? "all options are unchanged" : fmt::format("changed since: {}", fmt::join(changes, "; ")));
}

// Streams belong to ranks (dropout differs between them), so another layout has no use for them.
void restore_rng(const fs::path& folder, const checkpoint::Manifest& manifest, bool same_layout,
                 parallel::ParallelContext& context) {
  check<DataError>(manifest.has("rng"), "{} contains no random states; set no_load_rng to reseed them",
                   folder.string());
  if (same_layout)
    context.rng().restore(
        checkpoint::StateFiles(folder, manifest, "rng").bytes(fmt::format("rank-{}", context.rank())));
  else if (context.rank() == 0)
    log_info("{} was saved by {}; random streams are reseeded", folder.string(), manifest.layout.in_words());
}

// Main parameters that are not stored can be made from the weights, so they are not missing.
model::KeyDifference compare_state(const std::vector<hf::WeightSpec>& wanted, const checkpoint::StateFiles& files) {
  std::set<std::string> unread;
  for (const auto& tensor : files.tensors()) unread.insert(tensor.name);
  model::KeyDifference difference;
  for (const hf::WeightSpec& tensor : wanted)
    if (unread.erase(tensor.name) == 0 && !optim::Optimizer::is_main(tensor.name))
      difference.absent.push_back(tensor.name);
  difference.unread.assign(unread.begin(), unread.end());
  return difference;
}

// Returns the tensors that may have more rows than in a checkpoint: the vocabulary may grow between two runs.
std::set<std::string> may_have_grown(const model::VirtualModels& models) {
  std::set<std::string> names{"embedding.weight", "head.weight"};
  std::erase_if(names, [&](const std::string& name) { return !model::has_vocabulary_rows(name, models.config()); });
  return names;
}

// The optimizer reads only the shards that this rank needs now, whatever layout wrote them.
void restore_optimizer(const fs::path& folder, const checkpoint::Manifest& manifest, const RunProgress& progress,
                       const KeyActions& keys, OptimizedModel& model) {
  check<DataError>(manifest.has("optimizer"),
                   "{} holds no optimizer state (save_only_model, no_save_optim), so a run cannot continue from"
                   " it; use it as a model (model_name_or_path), or set no_load_optim or finetune",
                   folder.string());
  const std::string origin = (folder / kProgressFile).string();
  const int rank = model.models().context().rank();
  const checkpoint::StateFiles files(folder, manifest, "optimizer", rank);
  model.optimizer().read_progress(progress.optimizer, files.name());  // another rule lacks tensors, but is told as such
  apply_key_actions(compare_state(planned_state(model.models(), model.optimizer()), files), keys, "optimizer state",
                    folder, rank == 0);
  model.optimizer().load_state(files, progress.optimizer,
                               {.may_lack = keys.absent != KeyAction::kFail, .grown = may_have_grown(model.models())});
  if (progress.of_other_program) {  // the schedule of this run, at the same step
    model.scheduler().step(model.optimizer().steps());
    return;
  }
  model.scheduler().load(optim::parse_scheduler_state(progress.scheduler, origin));
  model.scaler().load(optim::parse_grad_scaler_state(progress.scaler, origin));
}

// The weights of a 16-bit model are rounded; its main parameters have the bits that are missing.
void restore_main_params(const fs::path& folder, const checkpoint::Manifest& manifest, OptimizedModel& model) {
  check<DataError>(manifest.has("optimizer"),
                   "load_main_params_from_ckpt is set, but {} holds no optimizer state (save_only_model, no_save_optim)"
                   " and so no main parameters; switch the option off to continue from the rounded weights",
                   folder.string());
  const int rank = model.models().context().rank();
  model.optimizer().load_main_params(checkpoint::StateFiles(folder, manifest, "optimizer", rank),
                                     may_have_grown(model.models()));
}

// A checkpoint of another recipe, or with histories of another length, has no states that fit: scales are then found
// again from scratch.
void restore_fp8(const fs::path& folder, const checkpoint::Manifest& manifest, const model::VirtualModels& models) {
  const std::vector<parallel::ShardedTensor> wanted = model::fp8_states(models);
  if (wanted.empty() || !manifest.has(kFp8)) return;
  const checkpoint::StateFiles files(folder, manifest, kFp8);
  std::map<std::string, std::vector<int64_t>> there;
  for (const auto& tensor : files.tensors()) there[tensor.name] = tensor.global_shape;
  for (const parallel::ShardedTensor& part : wanted)
    if (const auto found = there.find(part.name); found == there.end() || found->second != part.global_shape) {
      log_info("{} contains other fp8 histories than this run needs; scales are found again from scratch",
               folder.string());
      return;
    }
  for (const parallel::ShardedTensor& part : wanted) files.read(part);
  model::use_fp8_states(models);
}

}  // namespace

// Everything that may change while a background save runs is copied here: state, progress and arguments as text. The
// tensors are views; the saver copies them before finish_copy() returns.
checkpoint::SaveRequest save_request(OptimizedModel& model, SavePoint point) {
  const model::VirtualModels& models = model.models();
  const parallel::ParallelContext& context = models.context();
  const SaveSettings& settings = point.settings;
  const at::ScalarType dtype = models[0].parameters().dtype();
  checkpoint::SaveRequest request{.folder = point.folder,
                                  .step = point.state.global_step,
                                  .layout = layout_of(settings, context),
                                  .tensors = {weight_files(models, dtype)}};
  if (model::has_start(models)) request.tensors.push_back(start_files(models));
  if (settings.optimizer)
    request.tensors.push_back(optimizer_files(models, model.optimizer(), settings.file_per_writer));
  if (auto fp8 = fp8_files(models); settings.optimizer && !fp8.tensors.empty())
    request.tensors.push_back(std::move(fp8));
  if (settings.rng) request.tensors.push_back(checkpoint::rng_files(context, context.rng().save()));
  point.progress.optimizer = model.optimizer().progress_json();
  point.progress.scheduler = optim::to_json_text(model.scheduler().state());
  point.progress.scaler = optim::to_json_text(model.scaler().state());
  request.other_files = [&models, dtype, assets = point.assets, state = point.state,
                         progress = point.progress.to_json(), yaml = settings.arguments](const fs::path& folder) {
    if (model::has_adapter(models))
      model::write_adapter_files(models, model::adapter_of(models), folder, assets);
    else
      model::write_model_files(models.config(), dtype, folder, assets);
    io::write_text_file(folder / kArgumentsFile, yaml);
    io::write_text_file(folder / kProgressFile, progress);
    state.save(folder / kTrainerStateFile);
  };
  return request;
}

// Reads text files only. The tensors are read in restore(), when the model with its buffers exists.
ResumePoint read_resume_point(const fs::path& folder, const TrainerSettings& settings,
                              parallel::ParallelContext& context) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  const RunProgress progress = RunProgress::from_json(io::read_text_file(folder / kProgressFile, kMaxTextBytes),
                                                      (folder / kProgressFile).string());
  if (context.rank() == 0) say_what_changed(folder, settings.save.arguments);
  ResumePoint point{.state = TrainerState::load(folder / kTrainerStateFile), .data = progress.data, .restore = {}};
  const ResumeSettings parts = settings.resume;
  const bool same_layout = manifest.layout == layout_of(settings.save, context);
  point.restore = [=, &context](OptimizedModel& model) {
    if (parts.optimizer) restore_fp8(folder, manifest, model.models());  // first: parameters in fp8 are cast with it
    if (parts.optimizer)
      restore_optimizer(folder, manifest, progress, parts.keys, model);
    else if (parts.main_params)
      restore_main_params(folder, manifest, model);
    else
      // Without the optimizer's state its fp32 copies are made from the weights just loaded.
      model.reload_parameters();
    if (parts.rng && !progress.of_other_program) restore_rng(folder, manifest, same_layout, context);
  };
  point.sampler = progress.sampler;
  point.log = progress.log;
  point.skipped_samples = progress.skipped_samples;
  point.epoch_end_pending = progress.epoch_end_pending;
  // ignore_data_skip: the epoch starts again, and its order need not be that of the checkpoint.
  if (parts.restarts_epoch) {
    point.data.position.consumed = 0;
    point.sampler.reset();
  }
  return point;
}

// Compares the sizes first: a missing or misshapen tensor would give a far less helpful message.
void load_checkpoint_weights(const model::VirtualModels& models, const fs::path& folder, const KeyActions& keys) {
  if (model::has_adapter(models)) return model::load_adapter(models, folder);
  const model::ModelConfig& config = models.config();
  const model::ModelConfig saved =
      model::with_towers(model::read_model_config(folder, config.own_family), model::towers_of(config));
  std::vector<std::string> differences;
  const auto compare = [&](const char* name, int64_t there, int64_t here) {
    if (there != here) differences.push_back(fmt::format("{} is {} there and {} in this run", name, there, here));
  };
  compare("num_layers", saved.num_layers, config.num_layers);
  compare("hidden_size", saved.hidden_size, config.hidden_size);
  compare("num_attention_heads", saved.num_heads, config.num_heads);
  compare("num_query_groups", saved.num_kv_heads, config.num_kv_heads);
  compare("ffn_hidden_size", saved.mlp_width, config.mlp_width);
  compare("the vocabulary", saved.vocab_size, config.vocab_size);
  check<ConfigError>(differences.empty(), "{} contains a different model: {}", folder.string(),
                     fmt::join(differences, "; "));
  apply_key_actions(model::compare_weights(models, folder, saved), keys, "weights", folder,
                    models.context().rank() == 0);
  model::load_common_weights(models, folder, saved);
}

// Compares texts, so an option that is written differently but means the same counts as changed.
std::vector<std::string> changed_options(const std::string& before, const std::string& now) {
  static const std::set<std::string> kLeftOut{"output_dir", "save", "load", "resume_from_checkpoint",
                                              "overwrite_output_dir"};
  const auto old_lines = lines_of(before), new_lines = lines_of(now);
  std::vector<std::string> changes;
  for (const auto& [name, value] : new_lines) {
    if (kLeftOut.contains(name)) continue;
    const auto old_line = old_lines.find(name);
    if (old_line == old_lines.end())
      changes.push_back(fmt::format("{}: not set, now {}", name, value));
    else if (old_line->second != value)
      changes.push_back(fmt::format("{}: {}, now {}", name, old_line->second, value));
  }
  for (const auto& [name, value] : old_lines)
    if (!kLeftOut.contains(name) && !new_lines.contains(name))
      changes.push_back(fmt::format("{}: {}, now not set", name, value));
  return changes;
}

// A position is a number of samples, so it means the same samples only if size, shuffling and seed are the same.
void check_same_data(const ResumePoint& resume, const std::optional<data::Sampler>& now, bool may_change) {
  if (!resume.sampler || !now) return;
  const data::SamplerOptions &then = *resume.sampler, &current = now->options();
  std::vector<std::string> changes;
  if (then.size != current.size)
    changes.push_back(fmt::format("it had {} samples and now has {}", then.size, current.size));
  if (then.shuffle != current.shuffle)
    changes.push_back(
        fmt::format("it was {}shuffled and is {}", then.shuffle ? "" : "not ", current.shuffle ? "now" : "not now"));
  if (then.seed != current.seed && current.shuffle)
    changes.push_back(fmt::format("it was shuffled with seed {} and now with {}", then.seed, current.seed));
  if (then.by_length != current.by_length)
    changes.push_back(fmt::format("it was {}grouped by length and is {}", then.by_length ? "" : "not ",
                                  current.by_length ? "now" : "not now"));
  if (changes.empty()) return;
  const std::string sentence = fmt::format(
      "the training data differs from that of the checkpoint, whose position is {} samples into epoch {}: {}",
      resume.data.position.consumed, resume.data.position.epoch, fmt::join(changes, "; "));
  check<ConfigError>(may_change, "{}. Use the same data, or set ignore_data_skip to restart the epoch", sentence);
  if (resume.state.is_world_process_zero) log_warning("{}; some samples may be used twice or not at all", sentence);
}

}  // namespace megalith::train
