// The planner plans what the trainer would do: sizes, schedule, update and model come from the same functions that make
// a run's settings. A search tries a layout by writing it into the options and deriving them again.
#include "megalith/run/resolve/run_shape.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/distillation/taught_objective.h"

namespace megalith::run {

namespace {

using config::TrainingArguments;
using plan::RecomputeChoice;

// Returns the granularity, for reports; the modules are passed on beside it.
plan::Recompute recompute_of(const config::RecomputeConfig& recompute) {
  if (!recompute.granularity) return plan::Recompute::kNone;
  return *recompute.granularity == config::RecomputeGranularity::kFull ? plan::Recompute::kFull
                                                                       : plan::Recompute::kSelective;
}

// Returns whether the user has asked for any recomputation; the search then leaves it alone unless told otherwise.
bool is_chosen(const config::RecomputeConfig& recompute) {
  return recompute.granularity || recompute.gradient_checkpointing || recompute.recompute_activations;
}

// Writes a choice of the search into the options: selective recomputation repeats norms and feed-forward layers, full
// recomputation every layer.
void set_recompute(config::RecomputeConfig& recompute, RecomputeChoice choice, bool experts) {
  if (choice == RecomputeChoice::kAsGiven) return;
  if (is_chosen(recompute)) recompute = {};  // the search has set the user's choice aside
  if (choice == RecomputeChoice::kSelective) {
    recompute.granularity = config::RecomputeGranularity::kSelective;
    recompute.modules = {"layernorm", experts ? "moe" : "mlp"};
  } else if (choice == RecomputeChoice::kFull) {
    recompute.granularity = config::RecomputeGranularity::kFull;
    recompute.method = config::RecomputeMethod::kUniform;
    recompute.num_layers = 1;
  }
}

// Applies what preferences change: two answers per pair, and a reference with weights of its own unless it is the model
// below the adapter or its scores are precomputed. The mismatched answers of stage kto run forward only, so that their
// passes need less memory than those that are trained.
void apply_preferences(config::Stage stage, const config::PreferenceConfig& how, plan::RunShape& run) {
  const bool compares = config::needs_reference(stage, how.loss);
  if (stage == config::Stage::kDpo || stage == config::Stage::kReward) run.answers = 2;
  run.keeps_base = run.options.adapter && compares;
  run.reference = compares && !how.precompute_ref_log_probs && !(run.options.adapter && !how.ref_model);
}

// Returns the arguments in a layout, derived. State and gradients are sharded and overlapped wherever ranks share them.
TrainingArguments in_layout(TrainingArguments args, const plan::SearchRequest& request,
                            const plan::LayoutChoice& choice) {
  const bool experts = request.model->moe.has_value();
  args.parallel.tp = choice.tp;
  args.parallel.cp = choice.cp;
  args.parallel.pp = choice.pp;
  args.parallel.ep = choice.ep;
  if (experts) args.parallel.etp = choice.etp;
  // The search assumes good practice: with tp, norms are split along the tokens; experts exchange tokens by
  // all-to-all.
  args.parallel.sequence_parallel = args.parallel.sequence_parallel || choice.tp > 1;
  args.pipeline.vpp = choice.vpp > 1 ? std::optional(choice.vpp) : std::nullopt;
  args.batch.micro_batch_size = choice.micro_batch;
  args.batch.global_batch_size = static_cast<int>(request.global_batch);
  if (experts) args.moe.token_dispatcher = config::TokenDispatcher::kAllToAll;
  const bool shared = choice.dp(request.gpus) * choice.cp > 1;
  args.optimizer.use_distributed_optimizer = args.optimizer.use_distributed_optimizer || shared;
  args.ddp.overlap_grad_reduce = args.ddp.overlap_grad_reduce || shared;
  args.ddp.overlap_param_gather = args.ddp.overlap_param_gather || shared;
  if (choice.offload) {
    args.optimizer.cpu_offload = true;
    args.optimizer.offload_fraction = 1;
  }
  set_recompute(args.recompute, choice.recompute, experts);
  return config::derive(args).args;
}

constexpr double kSoundSeconds = 30;      // longer sounds are cut by LLaMA-Factory
constexpr double kFramesPerSecond = 100;  // nn::AudioShape

// A run whose sequences are shorter than an image has smaller images, unless they are given.
void set_images(plan::RunShape& run, const plan::MediaRequest& media) {
  check<ConfigError>(media.images.value_or(0) >= 0, "images_per_sample is {}; use 0 or more", media.images.value_or(0));
  check<ConfigError>(media.image_pixels.value_or(1) > 0, "image_pixels is {}; it must be positive",
                     media.image_pixels.value_or(1));
  const nn::VisionShape& tower = *run.model->vision;
  run.images = media.images.value_or(1);
  // The side in output rows, which are squares of patches.
  const double token_pixels = static_cast<double>(tower.patch * tower.patch * tower.merged());
  const auto pixels = static_cast<double>(media.image_pixels.value_or(run.image_max_pixels));
  auto side = static_cast<int64_t>(std::sqrt(pixels / token_pixels));
  if (!media.image_pixels)
    side = std::min(side, static_cast<int64_t>(std::sqrt(static_cast<double>(run.sequence_length))));
  run.image_side = std::max<int64_t>(side, 1) * tower.merge;
}

// The same for sounds, in whole chunks.
void set_sounds(plan::RunShape& run, const plan::MediaRequest& media) {
  check<ConfigError>(media.sounds.value_or(0) >= 0, "sounds_per_sample is {}; use 0 or more", media.sounds.value_or(0));
  check<ConfigError>(media.sound_seconds.value_or(1) > 0, "sound_seconds is {}; it must be positive",
                     media.sound_seconds.value_or(1));
  const nn::AudioShape& tower = *run.model->audio;
  run.sounds = media.sounds.value_or(1);
  run.sound_frames = std::llround(media.sound_seconds.value_or(kSoundSeconds) * kFramesPerSecond);
  if (!media.sound_seconds)
    run.sound_frames = std::min(run.sound_frames, run.sequence_length / tower.chunk_rows() * tower.chunk);
  run.sound_frames = std::max<int64_t>(run.sound_frames, 1);
}

}  // namespace

// Everything that follows from options and world size. The model, its device and the sequence length are still open.
plan::RunShape open_shape(const TrainingArguments& args, int world_size) {
  const train::StepSettings step = step_settings(args);
  const train::UpdateSettings update = update_settings(args);
  plan::RunShape run;
  run.options = model_options(args, at::kCPU);
  if (trains_adapter(args)) run.options.adapter = new_adapter(args);  // "all" stays as it is
  run.image_max_pixels = args.media.image_max_pixels;
  run.grid = config::grid_shape(args, world_size);
  run.pipeline = step.pipeline;
  run.stages = config::split_request(args.pipeline);
  run.overlap_p2p_comm = step.overlap_p2p_comm;
  run.deferred_heads = step.deferred_heads;
  run.recompute = recompute_of(args.recompute);
  run.recompute_modules = args.recompute.modules;
  run.gradients = update.gradients;
  run.overlap_param_gather = update.param_gather != optim::ParamGather::kInStep;
  run.optimizer_state_bytes = update.optimizer.formats.state_bytes(*update.optimizer.rule);
  if (const auto& muon = update.optimizer.muon)
    run.muon = plan::MuonShape{.tp_mode = muon->settings().tp_mode,
                               .steps = muon->settings().steps,
                               .fp32_products = muon->settings().fp32_products,
                               .state_bytes = update.optimizer.formats.state_bytes(optim::Muon::state_names())};
  run.main_parameter_bytes = run.half() ? update.optimizer.formats.main_bytes(run.options.dtype) : 4;
  run.fp8_main_parameter_bytes = update.optimizer.formats.main_bytes(at::kFloat8_e4m3fn);
  run.offload_fraction = update.optimizer.offload_fraction;
  run.saves_in_background = args.checkpoint.async_save;
  if (args.run.stage == config::Stage::kDpo || args.run.stage == config::Stage::kKto ||
      args.run.stage == config::Stage::kReward)
    apply_preferences(args.run.stage, args.preference, run);
  if (layout::problems(run.grid).empty()) {  // otherwise there is no dp, and complete() says why
    const layout::MicrobatchCalculator batches(config::batch_plan(args, run.dp()));
    run.micro_batch_size = batches.micro_batch_size();
    run.microbatches = batches.final_global_batch_size() / (run.micro_batch_size * run.dp());
  }
  return run;
}

// loss_chunk only says that the head works in slices; options_on sets their size.
plan::RunShape with_teacher(plan::RunShape open, std::shared_ptr<const model::ModelConfig> teacher, bool in_files) {
  if (!teacher && !in_files) return open;
  open.teacher = std::move(teacher);
  open.teacher_slice = train::TaughtObjective::kSliceTokens;
  if (open.options.loss_chunk == 0) open.options.loss_chunk = 1;
  return open;
}

plan::RunShape closed_shape(plan::RunShape open, const model::ModelConfig& model, int64_t sequence_length,
                            const plan::Machinery& machinery) {
  open.model = &model;
  open.options = options_on(std::move(open.options), machinery.device());
  open.sequence_length = sequence_length;
  open.machinery = machinery;
  set_media(open, {});
  return plan::complete(std::move(open));
}

plan::RunShape run_shape(const model::ModelConfig& model, const TrainingArguments& args, int world_size,
                         int64_t sequence_length, const plan::Machinery& machinery) {
  const bool in_files = args.distillation.files.has_value();
  return closed_shape(with_teacher(open_shape(args, world_size), teacher_config(args), in_files), model,
                      sequence_length, machinery);
}

void set_media(plan::RunShape& run, const plan::MediaRequest& media) {
  check<ConfigError>(run.model->vision || (!media.images && !media.image_pixels),
                     "images_per_sample and image_pixels are for models that see; this {} model has no vision tower,"
                     " so leave them out",
                     run.model->family);
  check<ConfigError>(run.model->audio || (!media.sounds && !media.sound_seconds),
                     "sounds_per_sample and sound_seconds are for models that hear; this {} model has no audio tower,"
                     " so leave them out",
                     run.model->family);
  if (run.model->vision) set_images(run, media);
  if (run.model->audio) set_sounds(run, media);
}

plan::SearchRequest search_request(const model::ModelConfig& model, const TrainingArguments& args) {
  const config::ParallelConfig& parallel = args.parallel;
  plan::SearchRequest request;
  request.model = &model;
  request.given = {.tp = parallel.tp,
                   .pp = parallel.pp,
                   .cp = parallel.cp,
                   .ep = parallel.ep,
                   .etp = parallel.etp,
                   .vpp = args.pipeline.vpp,
                   .micro_batch = std::nullopt,
                   .recompute = is_chosen(args.recompute)};
  request.recompute = recompute_of(args.recompute);
  request.offloads = args.optimizer.cpu_offload;
  // The planner calls back for every layout that it tries. Without a choice it asks for the layout of the options.
  request.shape = [args, teacher = teacher_config(args)](const plan::SearchRequest& mine,
                                                         const std::optional<plan::LayoutChoice>& choice) {
    const TrainingArguments tried = choice ? in_layout(args, mine, *choice) : config::derive(args).args;
    const bool in_files = tried.distillation.files.has_value();
    plan::RunShape run = closed_shape(with_teacher(open_shape(tried, mine.gpus), teacher, in_files), *mine.model,
                                      mine.sequence_length, mine.cluster.machinery());
    set_media(run, mine.media);
    return run;
  };
  return request;
}

}  // namespace megalith::run
