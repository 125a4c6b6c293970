#include "tests/plan/memory_case.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <mutex>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/data/random.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/preference_settings.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/preference/preference_objective.h"
#include "megalith/train/train_step.h"
#include "tests/support/memory_meter.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

json decoder(const std::string& family) {
  return {{"model_type", family},     {"hidden_size", 128},
          {"num_hidden_layers", 4},   {"num_attention_heads", 8},
          {"num_key_value_heads", 4}, {"head_dim", 16},
          {"intermediate_size", 352}, {"max_position_embeddings", 2048},
          {"vocab_size", 500},        {"rms_norm_eps", 1e-6},
          {"hidden_act", "silu"},     {"tie_word_embeddings", false},
          {"rope_theta", 10000.0},    {"initializer_range", 0.02},
          {"torch_dtype", "float32"}};
}

json family_json(const std::string& family) {
  if (family == "gpt2")
    return {{"model_type", "gpt2"},
            {"n_embd", 128},
            {"n_layer", 4},
            {"n_head", 8},
            {"n_positions", 1024},
            {"vocab_size", 500},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"attn_pdrop", 0.0},
            {"layer_norm_epsilon", 1e-5},
            {"activation_function", "gelu_new"},
            {"torch_dtype", "float32"}};
  json config = decoder(family);
  if (family == "mixtral") {
    config["num_local_experts"] = 4;
    config["num_experts_per_tok"] = 2;
    config["intermediate_size"] = 192;
    config.erase("head_dim");
  }
  if (family == "glm4_moe") {  // with wide shared experts
    config["n_routed_experts"] = 4;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = 96;
    config["n_shared_experts"] = 6;
    config["first_k_dense_replace"] = 0;
  }
  if (family == "qwen3_next") {  // delta nets only; narrow experts, so that these weigh most
    config["linear_num_key_heads"] = 8;
    config["linear_num_value_heads"] = 8;
    config["linear_key_head_dim"] = 16;
    config["linear_value_head_dim"] = 16;
    config["linear_conv_kernel_dim"] = 4;
    config["layer_types"] = json::array();
    for (int layer = 0; layer < 8; ++layer) config["layer_types"].push_back("linear_attention");
    config["shared_expert_intermediate_size"] = 16;
    config["num_experts"] = 2;
    config["num_experts_per_tok"] = 1;
    config["moe_intermediate_size"] = 16;
    config["partial_rotary_factor"] = 0.25;
  }
  if (family == "deepseek_v3") {  // every rank of ep 8 holds a group of wide experts
    config.update({{"initializer_range", 0.2},
                   {"n_routed_experts", 32},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 512},
                   {"n_shared_experts", 1},
                   {"n_group", 8},
                   {"topk_group", 4},
                   {"first_k_dense_replace", 0},
                   {"q_lora_rank", 64},
                   {"kv_lora_rank", 32},
                   {"qk_nope_head_dim", 16},
                   {"qk_rope_head_dim", 8},
                   {"v_head_dim", 16}});
  }
  if (family == "qwen3_moe") {
    config["num_experts"] = 8;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = 96;
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = json::array();
    config["norm_topk_prob"] = true;
  }
  return config;
}

// Every sample begins with its images.
void add_images(const plan::RunShape& run, at::Generator& generator, data::MicroBatch& batch) {
  if (run.microbatch_images() == 0) return;
  const nn::VisionShape& tower = *run.model->vision;
  const int64_t rows = run.images * run.image_patches() / tower.merged();
  batch.pixels = at::randn({run.microbatch_images() * run.image_patches(), tower.patch_pixels()}, generator,
                           at::TensorOptions(at::kFloat));
  batch.grids = at::tensor({int64_t{1}, run.image_side, run.image_side}).repeat({run.microbatch_images(), 1});
  batch.visual_rows = at::full({run.sequences(), run.sequence_length}, -1, at::kLong);
  for (int64_t sequence = 0; sequence < run.sequences(); ++sequence)
    batch.visual_rows[sequence].narrow(0, 0, rows).copy_(at::arange(rows) + sequence / run.answers * rows);
  batch.visual_rows = batch.visual_rows.reshape({-1});
}

// Sounds come after the images.
void add_sounds(const plan::RunShape& run, at::Generator& generator, data::MicroBatch& batch) {
  if (run.microbatch_sounds() == 0) return;
  const nn::AudioShape& tower = *run.model->audio;
  const int64_t rows = run.sounds * tower.rows(run.sound_frames);
  const int64_t first =
      run.microbatch_images() > 0 ? run.images * run.image_patches() / run.model->vision->merged() : 0;
  batch.audio_features =
      at::randn({run.microbatch_sounds() * run.sound_frames, tower.mel_bins}, generator, at::TensorOptions(at::kFloat));
  batch.audio_lengths = at::full({run.microbatch_sounds()}, run.sound_frames, at::kLong);
  batch.audio_rows = at::full({run.sequences(), run.sequence_length}, -1, at::kLong);
  for (int64_t sequence = 0; sequence < run.sequences(); ++sequence)
    batch.audio_rows[sequence].narrow(0, first, rows).copy_(at::arange(rows) + sequence / run.answers * rows);
  batch.audio_rows = batch.audio_rows.reshape({-1});
}

data::StepBatch random_batch(const plan::RunShape& run, uint64_t seed) {
  data::StepBatch step;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const int64_t tokens = run.sequences() * run.sequence_length;
  for (int64_t i = 0; i < run.microbatches; ++i) {
    data::MicroBatch batch;
    batch.ids = at::randint(0, run.model->vocab_size, {tokens}, generator, at::TensorOptions(at::kLong));
    batch.labels = at::randint(0, run.model->vocab_size, {tokens}, generator, at::TensorOptions(at::kLong));
    batch.layout = ops::SequenceLayout::dense(run.sequences(), run.sequence_length);
    batch.samples = run.micro_batch_size;
    batch.sequences = run.sequences();
    batch.preference = run.answers == 2;
    batch.real_tokens = batch.loss_tokens = tokens;
    add_images(run, generator, batch);
    add_sounds(run, generator, batch);
    step.microbatches.push_back(std::move(batch));
  }
  step.samples = run.micro_batch_size * run.microbatches * run.dp();
  return step;
}

model::VirtualModels fresh_model(const MemoryCase& how, parallel::ParallelContext& context) {
  model::ModelSettings settings = run::model_settings(how.args, context.device());
  settings.options.freeze = how.freeze;
  if (how.args.run.finetuning_type != config::FinetuningType::kLora)
    return model::AutoModel::from_config(how.model, settings, context);
  model::ModelOptions options = settings.options;
  options.adapter = model::resolve_targets(run::new_adapter(how.args), how.model);
  model::VirtualModels models(how.model, options, model::chunk_places(settings.stages, how.model, context), context);
  models.initialize_parameters(1);
  model::initialize_adapter(models, 1);
  return models;
}

// Language modelling, or preferences against a copy of the model or the model below its adapter.
std::unique_ptr<train::Objective> objective_of(const MemoryCase& how, model::VirtualModels& models) {
  if (how.args.run.stage != config::Stage::kDpo) return std::make_unique<train::Objective>();
  parallel::ParallelContext& context = models.context();
  auto reference =
      how.args.run.finetuning_type == config::FinetuningType::kLora
          ? train::ReferenceModel::below_adapter(models, run::step_settings(how.args))
          : std::make_unique<train::ReferenceModel>(
                model::AutoModel::from_config(how.model, run::model_settings(how.args, context.device()), context),
                run::step_settings(how.args));
  return std::make_unique<train::PreferenceObjective>(run::preference_settings(how.args.preference), context,
                                                      std::move(reference));
}

MeasuredMemory measure_rank(const MemoryCase& how, const plan::RunShape& run, const Rank& rank) {
  const MemoryMeter meter;
  parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(how.args, rank.size)));
  context.rng().seed(layout::adapter_seeds(how.args.seeds.seed, context.grid(), rank.rank));
  model::VirtualModels models = fresh_model(how, context);
  meter.reset_peak();
  const layout::MicrobatchCalculator batches(config::batch_plan(how.args, run.dp()));
  train::OptimizedModel optimized(models, run::update_settings(how.args), run::make_schedule(how.args, batches, 10),
                                  context);
  MeasuredMemory measured{.pp_rank = context.place().pp_rank};
  measured.making = static_cast<double>(meter.peak());
  const std::unique_ptr<train::Objective> objective = objective_of(how, models);
  TraceRecorder trace;
  train::MicrobatchRunner runner(models, run::step_settings(how.args), context, *objective, trace);
  train::RerunGuard guard(run::rerun_settings(how.args), {}, context);
  guard.watch(optimized);
  const data::StepBatch batch = random_batch(run, static_cast<uint64_t>(7 + context.place().dp_rank));
  measured.always = static_cast<double>(meter.current());
  meter.reset_peak();
  for (int64_t number = 1; number <= 2; ++number) train::train_step(optimized, runner, guard, batch, number, nullptr);
  measured.step = static_cast<double>(meter.peak());
  return measured;
}

// A number of the list, by the stream.
template <typename T>
T pick(data::RandomStream& random, const std::vector<T>& from) {
  return from[random.below(from.size())];
}

}  // namespace

model::ModelConfig plan_model(const std::string& family, const json& changes) {
  json config = family_json(family);
  if (!changes.is_null()) config.update(changes);
  return model::read_model_config(io::parse_json_file(config.dump(), family + " of a test"));
}

plan::RunShape MemoryCase::shape() const {
  plan::RunShape shape = run::run_shape(model, args, world, length,
                                        {.cuda = false, .collectives = plan::Machinery::Collectives::kThreads});
  shape.options.freeze = freeze;
  shape.images = images;
  shape.image_side = image_side;
  shape.sounds = sounds;
  shape.sound_frames = sound_frames;
  return shape;
}

MemoryCase memory_case(const std::string& name, const model::ModelConfig& model, const std::vector<std::string>& words,
                       int world, int64_t length) {
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words);
  config::TrainingArguments args = config::derive(parsed.args).args;
  args.save.output_dir.reset();
  if (model.moe && args.parallel.tp.value_or(1) > 1) args.parallel.sequence_parallel = true;
  return {name, run::model_overrides(args).applied_to(model), args, world, length};
}

MemoryCase random_memory_case(uint64_t seed) {
  data::RandomStream random(seed);
  const auto family =
      pick<std::string>(random, {"llama", "gpt2", "qwen2", "qwen3", "mixtral", "qwen3_moe", "llama", "qwen3"});
  const bool experts = family == "mixtral" || family == "qwen3_moe";
  const int layers = pick<int>(random, {4, 8});
  json changes{{family == "gpt2" ? "n_layer" : "num_hidden_layers", layers},
               {"vocab_size", pick<int>(random, {500, 1024, 2000})},
               {"tie_word_embeddings", pick<bool>(random, {true, false})}};
  if (family == "gpt2") changes.erase("tie_word_embeddings");
  const int tp = pick<int>(random, {1, 1, 2, 4}), pp = pick<int>(random, {1, 1, 2, 4});
  const int cp = tp * pp <= 4 ? pick<int>(random, {1, 1, 2}) : 1;
  const int dp = tp * pp * cp <= 4 ? pick<int>(random, {1, 2}) : 1;
  const int ep = experts && dp * cp * tp % 2 == 0 ? 2 : 1;
  const int vpp = pp == 2 && layers == 8 ? pick<int>(random, {1, 2}) : 1;
  const int64_t length = pick<int64_t>(random, {64, 128, 256}), micro = length == 256 ? 1 : pick<int>(random, {1, 2});
  const int microbatches = pp * pick<int>(random, {1, 2});
  const auto recompute = pick<std::string>(random, {"none", "none", "selective", "full", "mlp"});
  std::vector<std::string> words{fmt::format("--tp={}", tp),
                                 fmt::format("--pp={}", pp),
                                 fmt::format("--cp={}", cp),
                                 fmt::format("--ep={}", ep),
                                 fmt::format("--per_device_train_batch_size={}", micro),
                                 fmt::format("--gradient_accumulation_steps={}", microbatches),
                                 "--finetuning_type=full",
                                 fmt::format("--bf16={}", pick<bool>(random, {true, false})),
                                 "--max_steps=10",
                                 "--output_dir=none",
                                 fmt::format("--use_distributed_optimizer={}", pick<bool>(random, {true, false})),
                                 fmt::format("--calculate_per_token_loss={}", pick<bool>(random, {true, false}))};
  if (vpp > 1) words.push_back(fmt::format("--vpp={}", vpp));
  if (tp > 1 && pick<bool>(random, {true, false})) words.emplace_back("--sequence_parallel=true");
  if (recompute == "selective") words.emplace_back("--recompute_granularity=selective");
  if (recompute == "mlp") {
    words.emplace_back("--recompute_granularity=selective");
    words.emplace_back("--recompute_modules=mlp,layernorm");
  }
  if (recompute == "full")
    words.insert(words.end(),
                 {"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1"});
  if (experts) {
    words.push_back(fmt::format("--etp={}", dp * cp % 2 == 0 ? pick<int>(random, {1, tp}) : 1));
    words.insert(words.end(), {"--moe_token_dispatcher_type=alltoall", "--moe_expert_capacity_factor=1.0",
                               "--moe_pad_expert_input_to_capacity=true"});
  }
  const std::string name = fmt::format("{} L{} tp{} pp{} vpp{} cp{} ep{} dp{} {}x{} mb{} {}", family, layers, tp, pp,
                                       vpp, cp, ep, dp, micro, length, microbatches, recompute);
  return memory_case(name, plan_model(family, changes), words, tp * pp * cp * dp, length);
}

std::vector<MeasuredMemory> measure_memory(const MemoryCase& how) {
  const plan::RunShape run = how.shape();
  std::vector<MeasuredMemory> ranks(static_cast<size_t>(how.world));
  run_ranks(how.world, [&](const Rank& rank) { ranks[static_cast<size_t>(rank.rank)] = measure_rank(how, run, rank); });
  return ranks;
}

}  // namespace megalith::testing
