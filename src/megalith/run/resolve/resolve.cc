// Resolving collects problems instead of stopping at the first: every check that does not depend on a failed one still
// runs, and all problems are thrown together. The result is a DataError only if all of them are.
#include "megalith/run/resolve/resolve.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/world.h"
#include "megalith/config/validate.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/value_head.h"
#include "megalith/model/weight_check.h"
#include "megalith/observe/energy/energy_meter.h"
#include "megalith/parallel/gpu_count.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/peft/targets.h"
#include "megalith/run/media/run_media.h"
#include "megalith/run/resolve/indexed_settings.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/resolve/run_tokenizer.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/vocabulary/end_tokens.h"
#include "megalith/train/run_length.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;
using config::TrainingArguments;

// The problems found so far, each once.
class Findings {
 public:
  // Runs a check and returns whether it passed. Keeps the ConfigError or DataError that it throws.
  template <typename Check>
  bool attempt(const Check& check) {
    try {
      check();
      return true;
    } catch (const ConfigError& error) {
      add(error.what());
      only_data_ = false;
    } catch (const DataError& error) {
      add(error.what());
    }
    return false;
  }

  void throw_if_any() const {
    if (texts_.empty()) return;
    const std::string text = fmt::format("{}", fmt::join(texts_, "\n"));
    if (only_data_) throw DataError(text);
    throw ConfigError(text);
  }

 private:
  void add(std::string text) {
    if (std::ranges::find(texts_, text) == texts_.end()) texts_.push_back(std::move(text));
  }

  std::vector<std::string> texts_;
  bool only_data_ = true;
};

// An evaluation has no training data, writes nothing, and has an adapter only if one is named.
TrainingArguments for_evaluation(TrainingArguments args) {
  if (args.data.eval_dataset.empty()) args.data.eval_dataset = std::exchange(args.data.dataset, {});
  args.data.dataset.clear();
  args.data.val_size = 0;
  args.data.streaming = false;
  args.run.do_train = false;
  args.run.do_eval = true;
  args.save.output_dir.reset();
  args.logging.generate_samples_every.reset();
  args.logging.generate_samples_prompts.reset();
  args.logging.log_histograms_interval.reset();
  if (args.lora.adapter_name_or_path.empty()) args.run.finetuning_type = config::FinetuningType::kFull;
  args.freeze = {};  // nothing is trained
  return args;
}

// A teacher reads the data of the run as `train` would, with the tokenizer of the model that is trained. That model has
// no part in it otherwise: its weights are not read, and without one the tokenizer is the teacher's.
TrainingArguments for_teaching(TrainingArguments args) {
  if (!args.source.model_name_or_path) args.source.model_name_or_path = args.distillation.teacher;
  args.source.train_from_scratch = true;
  args.distillation.files.reset();  // they are written
  args.distillation.top_k.reset();
  args.distillation.tail = true;
  args.run.do_train = true;
  args.run.finetuning_type = config::FinetuningType::kFull;
  args.lora = {};
  args.freeze = {};
  args.batch = {.eval_micro_batch_size = args.batch.eval_micro_batch_size};
  args.save.output_dir.reset();
  args.save.resume_from_checkpoint.reset();
  args.logging.generate_samples_every.reset();
  args.logging.generate_samples_prompts.reset();
  args.logging.log_histograms_interval.reset();
  return args;
}

// Returns whether `train` continues the run that output_dir holds although nothing asks for it: LLaMA-Factory's rule,
// by which a job that was pre-empted is simply started again.
bool continues_earlier_run(const RunRequest& request) {
  const config::SaveConfig& save = request.options.save;
  const config::RunConfig& run = request.options.run;
  const bool trains = run.do_train || !run.do_eval;  // with neither, derive() lets it train
  return request.work == Work::kTrain && trains && save.output_dir && !save.overwrite_output_dir &&
         !save.resume_from_checkpoint && earlier_run(output_settings(save).folder) == EarlierRun::kSaved;
}

// Returns the request's options as its kind of work understands them.
TrainingArguments options_of(const RunRequest& request) {
  if (request.work == Work::kEvaluate) return for_evaluation(request.options);
  if (request.work == Work::kTeach) return for_teaching(request.options);
  TrainingArguments args = request.options;
  if (continues_earlier_run(request)) args.save.resume_from_checkpoint = "auto";
  return args;
}

// Checks what a run of the teacher alone needs.
void check_teaching(const TrainingArguments& args) {
  check<ConfigError>(args.distillation.teacher.has_value(),
                     "teacher_model_name_or_path is missing: the model whose likeliest tokens are to be written");
  check<ConfigError>(!args.data.dataset.empty() || args.data.tokenized_path,
                     "there is nothing to run the teacher on; give dataset: a name of dataset_info.json, or a file");
  check<ConfigError>(!args.data.streaming,
                     "a teacher's logits are written for data of a known size, so streaming does not work here; leave"
                     " it out");
}

// Checks the options; returns true if they can be derived. An evaluation needs no length, and a program that brings its
// own data or model need not describe them: pretrain() checks what it is missing then.
bool check_options(const RunRequest& request, const TrainingArguments& args, Findings& findings) {
  const bool brings_inputs = request.own_datasets || request.own_model;
  const bool takes_steps = request.work == Work::kTrain || request.work == Work::kPretrain;
  const bool needs_inputs = takes_steps && !brings_inputs;
  const bool known = findings.attempt([&] { request.report.check_runnable(); });
  const bool fit = findings.attempt(
      [&] { config::validate(args, {.world_size = request.world.size, .needs_inputs = needs_inputs}); });
  const bool has_data = findings.attempt([&] {
    check<ConfigError>(request.work != Work::kEvaluate || !args.data.eval_dataset.empty(),
                       "there is nothing to evaluate on; give eval_dataset: a name of dataset_info.json, or a file");
    if (request.work == Work::kTeach) check_teaching(args);
  });
  return known && fit && has_data;
}

// Checks that the steps of a run have a schedule: batch size and pipeline, and, if their number is given, learning rate
// and weight decay.
void check_schedule(const RunRequest& request, const RunSettings& settings) {
  const layout::MicrobatchCalculator batches(settings.trainer.batch);
  if (settings.trainer.length.max_steps > 0) settings.trainer.schedule(batches, settings.trainer.length.max_steps);
  if (!settings.trains || request.work == Work::kTeach) return;
  const bool continues = request.restarted || settings.resume || settings.pretrain.load.folder;
  // The batch of a run that continues may have grown already, so its first step is not checked.
  train::check_pipeline_schedule(settings.trainer.step, batches, continues ? std::nullopt : std::optional<int64_t>(0));
}

// Asks neither CUDA nor NVML for more than it may before ranks are forked; a rank finds out the rest.
void check_energy(const RunSettings& settings) {
  if (!settings.reports.log_energy || !settings.trains) return;
  const bool on_gpus = !settings.runtime.device.use_cpu && comm::nccl_available() &&
                       parallel::usable_gpus(parallel::gpu_device_folder(), env_exact("CUDA_VISIBLE_DEVICES"));
  check<ConfigError>(on_gpus,
                     "log_energy reads the energy counters of NVIDIA GPUs, but this run is on the CPU; leave it out");
  check<ConfigError>(observe::nvml_found(),
                     "log_energy needs NVML, but libnvidia-ml.so.1, which comes with the NVIDIA driver, cannot be"
                     " loaded; make it visible (in a container: the driver capability `utility`), or leave log_energy"
                     " out");
}

// Experts of a model folder are known only after config.json is read, so validate() could not check them.
void check_experts(const model::ModelConfig& model, const layout::GridShape& grid) {
  if (!model.moe) {
    check<ConfigError>(
        grid.ep == 1, "expert_model_parallel_size is {}, but the model ({}) has no experts to distribute; leave it out",
        grid.ep, model.family);
    return;
  }
  const auto found = nn::problems(*model.moe, grid.ep, grid.expert_tp());
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "; "));
}

// Looks the names up and throws for those that neither dataset_info.json nor the disk has.
void check_datasets(const config::DataConfig& data) {
  for (const auto* names : {&data.dataset, &data.eval_dataset}) data::find_datasets(*names, data.dataset_dir);
}

// A missing file would otherwise be noticed on every rank at once, after the model is built.
void check_indexed_files(const data::Blend& blend) {
  for (const std::string& prefix : blend.prefixes)
    for (const char* ending : {".idx", ".bin"})
      check<DataError>(fs::is_regular_file(prefix + ending),
                       "there is no file {}{}; data_path takes the common beginning of a .bin and an .idx file, as"
                       " `megalith data tokenize` writes them",
                       prefix, ending);
}

// Returns whether any source of data is given.
bool names_data(const config::IndexedDataConfig& indexed) {
  return indexed.mock_data || indexed.data_args_path || indexed.per_split_data_args_path ||
         !indexed.data_path.empty() || !indexed.train_data_path.empty() || !indexed.valid_data_path.empty() ||
         !indexed.test_data_path.empty();
}

// Checks the files of the blend for all splits, or of the blend for each.
void check_indexed_data(const config::IndexedDataConfig& indexed) {
  const data::DataSources sources = data_sources(indexed);
  if (sources.all) check_indexed_files(*sources.all);
  for (const auto& blend : sources.by_split)
    if (blend) check_indexed_files(*blend);
}

// Installs the program's own update rule, also for the planner, which counts its state.
void take_own_rule(const OwnParts& own, RunSettings& settings) {
  if (!own.update_rule) return;
  settings.trainer.update.optimizer.rule = own.update_rule;
  settings.trainer.update.optimizer.muon = nullptr;
  settings.shape.muon.reset();
  settings.trainer.update.gradients.matrices_apart = settings.shape.gradients.matrices_apart = false;
  settings.shape.optimizer_state_bytes = settings.trainer.update.optimizer.formats.state_bytes(*own.update_rule);
}

// Derives the options. --timing needs at least level 1, since level 0 does not time phases.
config::EffectiveArguments derived(const RunRequest& request, const TrainingArguments& args, bool experts) {
  config::EffectiveArguments effective = config::derive(args, experts);
  int& level = effective.args.logging.timing_log_level;
  if (request.switches.timing) level = std::max(1, level);
  return effective;
}

// Derives the settings, once it is known whether the model has experts.
void settle(const RunRequest& request, const TrainingArguments& args, bool experts, RunPlan& plan, Findings& findings) {
  config::EffectiveArguments effective = derived(request, args, experts);
  plan.options = std::move(effective.args);
  plan.warnings = std::move(effective.warnings);
  findings.attempt([&] {
    plan.settings = run_settings(plan.options, request.world);
    plan.settings.switches = request.switches;
    take_own_rule(request.own, plan.settings);
    check_schedule(request, plan.settings);
  });
  findings.attempt([&] { check_energy(plan.settings); });
}

// Brings the settings in line with the vocabulary of the model.
void take_vocabulary(Work work, RunPlan& plan) {
  const RunVocabulary& vocabulary = plan.model.vocabulary;
  check<ConfigError>(
      work != Work::kEvaluate || !vocabulary.has_new_rows(),
      "evaluation uses a model as it is: the rows of new tokens would be untrained. Leave out resize_vocab,"
      " add_tokens and add_special_tokens; the vocabulary of a grown model or adapter is in its files");
  plan.settings.model = with_vocabulary(plan.settings.model, vocabulary);
  // An adapter may have been given modules to train, and that of files has its own targets; the planner counts them.
  if (plan.settings.shape.options.adapter) {
    const model::AdapterSource& source = *plan.model.adapter;
    plan.settings.shape.options.adapter =
        source.trained
            ? peft::with_newer_names(peft::read_adapter_config(*source.trained), model::module_names(plan.model.config))
            : source.fresh;
  }
  plan.warnings.insert(plan.warnings.end(), vocabulary.notes.begin(), vocabulary.notes.end());
  for (std::string& warning : end_token_warnings(plan.model.config, vocabulary))
    plan.warnings.push_back(std::move(warning));
}

// Looks at the files with weights that the run will read: those of the model, unless it is fresh, and of the reference.
// Ranks would find the same mistakes, but only after all data is tokenized.
void check_weights(const RunPlan& plan) {
  const auto& preference = plan.preference;
  const model::TowerChoice towers = model::towers_of(plan.model.config);
  if (!plan.model.fresh) model::check_weight_files(plan.model.folder, towers, plan.model.config.own_family);
  if (preference && preference->reference != PreferencePlan::Reference::kNone && !preference->fresh &&
      preference->folder != plan.model.folder)
    model::check_weight_files(preference->folder, towers);
  if (plan.distillation && plan.distillation->files.empty()) model::check_weight_files(plan.distillation->folder);
}

// Finds the teacher, if there is one, and lets the planner count it.
void take_teacher(const RunRequest& request, RunPlan& plan) {
  plan.distillation = distillation_plan(plan.options, plan.model, plan.settings.shape);
  if (!plan.distillation) return;
  check<ConfigError>(
      !request.own.objective,
      "the program brings its own objective, so teacher_model_name_or_path and teacher_logits_path would have no"
      " effect; leave them out");
  plan.settings.shape =
      with_teacher(std::move(plan.settings.shape), plan.distillation->config, !plan.distillation->files.empty());
}

// A model predicts tokens or scores sequences, and a stage needs one of both. An evaluation takes the head of files.
void check_head(const RunRequest& request, const RunPlan& plan, const model::ModelConfig& in_files) {
  const config::Stage stage = plan.options.run.stage;
  const bool scores = config::scores_sequences(stage);
  check<ConfigError>(
      scores || in_files.num_labels == 0 || request.own.objective,
      "the model scores sequences (num_labels {}), and stage {} needs one that predicts tokens; use stage rm"
      " or cls, or the language model",
      in_files.num_labels, choice_name(stage));
  if (scores && request.work == Work::kEvaluate) check_trained_head(plan.model, in_files);
}

// Says how the scores of a run are trained, and which padding its exports name.
void take_scores(RunPlan& plan) {
  plan.scoring = scoring_plan(plan.options, plan.model.config);
  if (!plan.scoring) return;
  const RunVocabulary& vocabulary = plan.model.vocabulary;
  const auto pad = score_pad(vocabulary, plan.model.config);
  plan.settings.model.overrides.scores->pad_token = pad;
  if (!pad || !vocabulary.tokenizer || vocabulary.tokenizer->eos_id() != pad) return;
  plan.warnings.push_back(
      model::score_bias(plan.model.config)
          ? fmt::format(
                "the padding token {} is the end token, too: the model has a value head, which scores the end of"
                " a text, and transformers will score the last token before it",
                *pad)
          : fmt::format(
                "the padding token {} is the end token, too: the score of a text is that of the last token"
                " before it, as in transformers. Give the tokenizer a padding token of its own to score the end",
                *pad));
}

// Looks at the checkpoint that the run continues. That of an adapter has no model of its own.
void check_checkpoint(const std::optional<std::string>& resume, const fs::path& run_folder, const ModelPlan& model) {
  const auto checkpoint = check_resume(resume, run_folder);
  if (checkpoint && !model.folder.empty() && !model.adapter && fs::is_regular_file(*checkpoint / "config.json"))
    model::check_same_model(*checkpoint, model.config);
}

// Finds a model and data in Hugging Face's formats. The order is that of dependence: the folder, its config.json, the
// settings (which need to know about experts), then the parts that use both. If the options or the folder fail, only
// the data can still be checked.
void find_fine_tuning(const RunRequest& request, const TrainingArguments& args, bool options_fit, RunPlan& plan,
                      Findings& findings) {
  fs::path folder;
  model::ModelConfig in_files;
  const bool has_model = findings.attempt([&] {
    check<ConfigError>(args.source.model_name_or_path || !options_fit,
                       "model_name_or_path is missing: a folder with config.json and safetensors files, or a hub name");
    if (!args.source.model_name_or_path) return;  // reported with the options
    folder = find_model(*args.source.model_name_or_path, !args.source.train_from_scratch);
    in_files = model::read_model_config(folder, request.own.family);
  });
  if (!options_fit || !has_model) {
    findings.attempt([&] { check_datasets(args.data); });
    return;
  }
  settle(request, args, in_files.moe.has_value(), plan, findings);
  findings.attempt([&] { check_experts(in_files, plan.settings.runtime.grid); });
  // Towers that no data reaches are left out: they cost memory, and may not fit into a pipeline's first chunk. Whether
  // a program's own collator brings media, only the program knows.
  model::TowerChoice media{.vision = false, .audio = false};
  findings.attempt([&] {
    media = towers_for(args);
    if (!request.own.collate) check_towers(args, in_files, media);
  });
  const model::TowerChoice towers = request.own.collate ? model::TowerChoice{} : media;
  plan.settings.model.overrides.towers = towers;
  const bool model_fits = findings.attempt([&] {
    plan.model = model_plan(folder, plan.options, request.own.family, /*reads_tokenizer=*/true, towers);
    model::layer_split(plan.settings.model.stages, plan.model.config, plan.settings.runtime.grid.pp);
  });
  // Without a model, its data can still be checked.
  const bool has_vocabulary = model_fits || findings.attempt([&] {
    plan.model.vocabulary = run_vocabulary(plan.options, folder, in_files, std::nullopt);
  });
  if (model_fits) findings.attempt([&] { take_vocabulary(request.work, plan); });
  if (model_fits) findings.attempt([&] { check_head(request, plan, in_files); });
  const bool scores_fit = model_fits && findings.attempt([&] { take_scores(plan); });
  if (model_fits) findings.attempt([&] { plan.preference = preference_plan(plan.options, plan.model); });
  if (model_fits) findings.attempt([&] { take_teacher(request, plan); });
  if (model_fits) findings.attempt([&] { check_weights(plan); });
  if (!has_vocabulary) return;
  findings.attempt([&] {
    const RunVocabulary& vocabulary = plan.model.vocabulary;
    check_samples(plan.settings.samples, {vocabulary.tokenizer, vocabulary.tokenizer_folder});
  });
  findings.attempt([&] {
    DataTools tools = data_tools(plan.model.vocabulary);
    tools.collate = request.own.collate;
    const model::ModelConfig& model = plan.model.config;
    if (scores_fit && plan.scoring) {
      if (plan.scoring->labels) tools.labels = label_form(model);
      if (!model::score_bias(model)) tools.score_pad = score_pad(plan.model.vocabulary, model);
    }
    if (model_fits && ((media.vision && model.vision) || (media.audio && model.audio))) {
      tools.media = media_settings(plan.options, folder, model, plan.model.vocabulary.tokenizer);
      tools.positions = model.media->positions;
    }
    plan.data = request.own_datasets ? own_data_plan(plan.options, tools) : data_plan(plan.options, tools);
  });
}

// Checks a model that options describe, and Megatron's data.
void find_pretraining(const RunRequest& request, const TrainingArguments& args, bool options_fit, RunPlan& plan,
                      Findings& findings) {
  // Options that do not fit have already been told that no data is named.
  if (!request.own_datasets && (options_fit || names_data(args.indexed)))
    findings.attempt([&] { check_indexed_data(args.indexed); });
  findings.attempt([&] { find_load(load_settings(args)); });
  if (!options_fit) return;
  settle(request, args, /*experts=*/false, plan, findings);
  plan.model.fresh = true;
  plan.settings.plannable = !request.own_model;
  if (request.own_model) return;
  findings.attempt([&] {
    const std::optional<RunTokenizer> tokenizer = make_run_tokenizer(plan.options);
    plan.model.config = model_from_options(plan.options, required(tokenizer).vocabulary());
    check_samples(plan.settings.samples, {tokenizer->tokenizer, tokenizer->folder});
    if (std::string note = export_note(plan.options, plan.model.config); !note.empty())
      plan.warnings.push_back(std::move(note));
  });
}

}  // namespace

config::EffectiveArguments effective_options(const RunRequest& request) {
  const TrainingArguments args = options_of(request);
  Findings findings;
  check_options(request, args, findings);
  findings.throw_if_any();
  return derived(request, args, /*experts=*/false);
}

RunPlan resolve(const RunRequest& request) {
  const TrainingArguments args = options_of(request);
  Findings findings;
  RunPlan plan;
  plan.own = request.own;
  const bool options_fit = check_options(request, args, findings);
  if (request.work == Work::kPretrain)
    find_pretraining(request, args, options_fit, plan, findings);
  else
    find_fine_tuning(request, args, options_fit, plan, findings);
  const OutputSettings output = output_settings(args.save);
  findings.attempt([&] { check_output_folder(output, request.begins_run); });
  if (request.work == Work::kTrain)
    findings.attempt([&] { check_checkpoint(args.save.resume_from_checkpoint, output.folder, plan.model); });
  findings.throw_if_any();
  if (args.save.resume_from_checkpoint != request.options.save.resume_from_checkpoint)
    plan.warnings.push_back(
        fmt::format("output_dir {} holds a run with checkpoints, which continues; set"
                    " overwrite_output_dir to start over",
                    output.folder.string()));
  return plan;
}

}  // namespace megalith::run
