// One chunk of a model. The constructor creates the parameters in the order of the forward pass, part by part: the
// embedding, each layer, the head. end_part() notes which parameters belong to a part, so that a part can wait for just
// those that are still being gathered, and lets the adapter add its own.
//
// Recomputation works on groups of consecutive layers: kUniform recomputes all in groups of num_layers, kBlock the
// first num_layers one by one. A group may run a second time in backward, after other forward passes: what it reads
// comes from its captured input.
#include "megalith/model/gpt_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/model/families/family.h"
#include "megalith/model/language_head.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/parameter/init.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/norm_rope/dropout.h"

namespace megalith::model {

namespace {

// Throws ConfigError for combinations that the parts of the model do not support.
void check_parts(const ModelConfig& config, const layout::GridShape& grid) {
  const auto found = context_parallel_problems(config, grid.tp, grid.cp);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  const Family* family = find_family(config);
  check<ConfigError>(!family || !family->head || (!config.tied_embeddings && config.mtp_layers == 0),
                     "the head of {} models is the family's own, but tied embeddings and multi-token prediction need"
                     " the library's; remove both from the configuration",
                     config.family);
}

// Recomputation takes the data out of storages that autograd has saved, and puts it back into the same ones.
void check_offload(const ModelOptions& options, int64_t num_layers) {
  check<ConfigError>(options.offload.num_layers < std::max<int64_t>(num_layers, 1),
                     "cpu_offloading_num_layers {} is not less than the {} layers of the model",
                     options.offload.num_layers, num_layers);
  check<ConfigError>(options.offload.num_layers == 0 || !options.recompute.any(),
                     "cpu_offloading keeps activations that recomputation does without; use one of them");
}

// Quantized weights are frozen, and multiplied in the dtype of the model.
void check_quantization(const ModelOptions& options) {
  if (!options.quantization) return;
  const int bits = ops::bits_of(*options.quantization);
  check<ConfigError>(options.adapter.has_value(),
                     "quantization_bit {} keeps weights that cannot be trained; use it with finetuning_type lora",
                     bits);
  check<ConfigError>(!options.fp8,
                     "quantization_bit {} and fp8 exclude each other: weights in {} bits are multiplied in the dtype of"
                     " the model; leave out one of them",
                     bits, bits);
}

}  // namespace

GptModel::GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
                   parallel::ParallelContext& context)
    : config_(config),
      options_(options),
      place_(place),
      context_(context),
      tp_(model::tensor_parallel(options, context)),
      vocab_{config.vocab_size, layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, tp_.size())},
      parameters_(options.dtype, options.device, options.quantization) {
  check_quantization(options);
  check_parts(config, context.grid().shape());
  check_offload(options, config.num_layers);
  if (options.offload.num_layers > 0 && !options.device.is_meta())
    offload_.emplace(options.device, options.offload.min_bytes);
  tp_.fp8.reset();  // tp_ is for embedding and head, whose rounding errors go straight into the loss
  const nn::ParameterScope root(parameters_);
  const nn::Init init = nn::Init::normal(config.init_std);
  const bool copied = config.tied_embeddings || config.mtp_layers > 0;  // the last stage holds a copy
  if (options.adapter)
    adapters_ = std::make_unique<peft::Adapters>(*options.adapter, module_names(config), tp_, context);
  if (options.trained_layers) trained_layers_.emplace(*options.trained_layers, config);
  if (place.embedding) {
    if (config.vision) {
      const std::string problem = deepstack_problem(config, place.num_layers);
      check<ConfigError>(problem.empty(), "{}", problem);
      vision_.emplace(root.child("vision"), *config.vision, tp_, context);
    }
    if (config.audio) audio_.emplace(root.child("audio"), *config.audio, tp_, context);
    embedding_.emplace(root.child("embedding"), vocab_, config.hidden_size, init, tp_,
                       copied && !place.head ? nn::ParameterRole::kTied : nn::ParameterRole::kWeight);
    if (config.learned_positions)
      positions_ = &root.add({.name = "position_embedding.weight",
                              .init = init,
                              .partial_grad_over_tp = tp_.splits_tokens(),
                              .is_embedding_or_head = true,
                              .replica = tp_.rank()},
                             {config.max_positions, config.hidden_size});
  }
  end_part(root);
  for (int64_t i = 0; i < place.num_layers; ++i) {
    const int64_t layer = place.first_layer + i;
    layers_.push_back(std::make_unique<TransformerBlock>(root.child("layers").child(std::to_string(layer)), config,
                                                         options, layer, i, context));
    end_part(root);
  }
  note_facts();
  if (!place.head) return;
  make_head(root);
  end_part(root);
  if (embedding_ && copied) parts_.back().push_back(&embedding_->weight());  // the head reads it, too
}

void GptModel::end_part(const nn::ParameterScope& root) {
  std::vector<nn::Parameter*> made;
  for (size_t i = listed_; i < parameters_.all().size(); ++i) {
    nn::Parameter& parameter = *parameters_.all()[i];
    const bool chosen = !trained_layers_ || trained_layers_->trains(parameter.spec.parts[0].name);
    if (chosen && !options_.freeze.freezes(parameter.spec.name))
      made.push_back(&parameter);
    else if (parameter.spec.role != nn::ParameterRole::kBuffer)
      parameter.value.requires_grad_(false);
  }
  if (adapters_) {
    // Adapters come before the listing below, so their parameters are in the same part as the weights they belong to.
    adapters_->add(root, made);
  }
  for (const nn::Parameter* parameter : made)
    if (parameter->attached.quantized && parameter->value.requires_grad())
      throw ConfigError(
          fmt::format("{} is kept in {} bits (quantization_bit) and cannot be trained in full; take its module off"
                      " additional_target, or leave out quantization_bit",
                      parameter->spec.name, ops::bits_of(*options_.quantization)));
  auto& part = parts_.emplace_back();
  for (; listed_ < parameters_.all().size(); ++listed_) {
    part.push_back(parameters_.all()[listed_].get());
    trains_ |= part.back()->value.requires_grad();
  }
}

void GptModel::make_head(const nn::ParameterScope& root) {
  const HeadSite site{config_, options_, context_, tp_};
  const Family* family = find_family(config_);
  if (config_.num_labels > 0)
    head_ = make_score_head(root, site);
  else if (family && family->head)
    head_ = family->head(root.child("head"), site);
  else
    head_ = std::make_unique<LanguageHead>(root, site, vocab_, embedding_ ? &*embedding_ : nullptr, place_.mtp);
}

void GptModel::note_facts() {
  random_ = adapters_ && adapters_->config().dropout > 0;
  for (const auto& layer : layers_) {
    random_ |= layer->is_random();
    cached_ &= layer->is_cached();
  }
}

ops::VocabRange GptModel::vocab_range() const { return nn::vocab_range(vocab_, tp_); }

std::vector<GptModel::RouterPlace> GptModel::routers() const {
  std::vector<RouterPlace> found;
  const auto add = [&found](int64_t layer, const TransformerBlock& block) {
    if (block.router()) found.push_back({layer, block.router()});
  };
  for (size_t i = 0; i < layers_.size(); ++i) add(place_.first_layer + static_cast<int64_t>(i), *layers_[i]);
  // Multi-token-prediction layers are numbered after the model's own, as their files number them.
  int64_t after = config_.num_layers;
  if (head_)
    for (const TransformerBlock* block : head_->blocks()) add(after++, *block);
  return found;
}

void GptModel::initialize_parameters(uint64_t seed) const { nn::initialize(parameters_, seed); }

at::Tensor GptModel::forward(const ModelInput& input) const {
  check<DataError>(
      !tp_.splits_tokens() || input.layout.tokens() % tp_.size() == 0,
      "{} tokens in a micro-batch cannot be split over tensor_model_parallel_size {} for sequence_parallel;"
      " pad them to a multiple",
      input.layout.tokens(), tp_.size());
  check<ConfigError>(!input.cache || cached_,
                     "{} models cannot generate: a part of their layers does not say that it supports a cache"
                     " (PartFacts::cached)",
                     config_.family);
  // The same for all layers. It is copied into recomputed groups, so it must not refer to this frame.
  nn::LayerInput layer_input{input.layout, {}, input.cache, input.training, aux_loss_scale_};
  layer_input.angles = angles(input.layout);
  before_part(0);
  if (adapters_) adapters_->state().training = input.training;
  check_media(input);
  const bool recompute = input.training && options_.recompute.layers != RecomputePlan::Layers::kNone;
  VisualRows visual;
  if (vision_) visual = vision_->run(input, recompute);
  SoundRows sound;
  if (audio_) sound = audio_->run(input, recompute);
  at::Tensor x = place_.embedding ? embed(input, visual, sound) : input.hidden;
  check(x.scalar_type() == options_.stream_dtype(), "a chunk of layers got hidden states in {} instead of {}",
        c10::toString(x.scalar_type()), c10::toString(options_.stream_dtype()));
  // A pipeline expects a gradient for the output of every stage, even if nothing in it is trained; so does the loss of
  // a micro-batch without media if only towers are trained.
  const bool anchored = (!trains_ && !place_.head) || (options_.freeze.language_model && !visual.any() && !sound.any());
  if (anchored && at::GradMode::is_enabled() && !x.requires_grad()) x = x.detach().requires_grad_();
  // The rows are in x now; layers need those of deepstack alone.
  visual.embeddings.reset();
  sound = {};
  x = run_layers(std::move(x), layer_input, visual);
  visual = {};
  if (input.cache) input.cache->advance(input.layout.tokens());
  if (!head_) return x;
  before_part(parts_.size() - 1);
  return head_->forward(x, input, layer_input);
}

void GptModel::check_media(const ModelInput& input) const {
  if (!place_.embedding) return;
  const auto any = [](const at::Tensor& list) { return list.defined() && list.size(0) > 0; };
  check<ConfigError>(vision_ || !any(input.grids),
                     "the data has images, but {} models have no vision tower here; use a model that sees, or data"
                     " without images",
                     config_.family);
  check<ConfigError>(audio_ || !any(input.audio_lengths),
                     "the data has sounds, but {} models have no audio tower here; use a model that hears, or data"
                     " without sounds",
                     config_.family);
}

const ops::RopeAngles& GptModel::angles(const ops::SequenceLayout& layout) const {
  // All micro-batches of a step often share one layout, for which the cosines and sines are computed once.
  const bool same = &layout.cumulative() == &angles_of_.cumulative();  // copies of a layout share their storage
  if (!config_.rope || (angles_.defined() && same)) return angles_;
  angles_ = ops::rope_angles(*config_.rope, layout, options_.device);
  angles_of_ = layout;
  return angles_;
}

void GptModel::before_part(size_t part) const {
  if (before_part_) before_part_(parts_[part]);
}

// NEFTune: x + u · α / √(L · h), u uniform in [-1, 1), with L the tokens of the longest sequence. Hugging Face counts
// the padding of a batch in L; here it does not matter how far rows are padded.
at::Tensor GptModel::with_noise(const at::Tensor& x, const ops::SequenceLayout& layout) const {
  const int64_t h = config_.hidden_size, sequences = layout.sequences();
  const double size = static_cast<double>(layout.max_position()) * static_cast<double>(h);
  const double bound = options_.neftune_alpha / std::sqrt(size);
  // Numbers of this call alone: how many are drawn depends on padding, and nothing after it may.
  at::Generator numbers = context_.rng().generator().clone();
  numbers.set_current_seed(ops::draw_seed(context_.rng().generator()));
  const int64_t drawn = layout.uniform() ? std::min(layout.max_position(), layout.longest()) : 0;
  at::Tensor noise = at::empty({layout.uniform() ? sequences * drawn : layout.tokens(), h}, x.options());
  noise.uniform_(-bound, bound, numbers);
  if (layout.uniform() && drawn < layout.longest())
    noise = at::constant_pad_nd(noise.view({sequences, drawn, h}), {0, 0, 0, layout.longest() - drawn}).view({-1, h});
  if (!tp_.splits_tokens()) return x + noise;
  const auto [first, count] = tp_.share(noise.size(0));
  return x + noise.narrow(0, first, count);
}

at::Tensor GptModel::embed(const ModelInput& input, const VisualRows& visual, const SoundRows& sound) const {
  at::Tensor x = embedding_->forward(input.ids);
  if (input.training && options_.neftune_alpha > 0) x = with_noise(x, input.layout);
  if (vision_) x = vision_->replace(x, visual);  // after the noise, which is for text
  if (audio_) x = audio_->replace(x, sound);
  if (positions_) {
    check<DataError>(input.layout.max_position() <= config_.max_positions,
                     "a sequence of {} tokens is longer than the {} positions of the model; use shorter sequences",
                     input.layout.max_position(), config_.max_positions);
    // Padding may reach beyond the table; no loss comes from there, so any row will do.
    at::Tensor where = input.layout.positions(x.device()).clamp_max(config_.max_positions - 1);
    // With sequence parallelism x is this rank's share of the tokens, [t/tp, h], so it takes the same share of
    // positions.
    if (tp_.splits_tokens()) {
      const auto [first, count] = tp_.share(where.size(0));
      where = where.narrow(0, first, count);
    }
    x = x + nn::table_rows(*positions_, where);
  }
  x = x.to(options_.stream_dtype());
  if (!input.training || config_.embedding_dropout == 0) return x;
  // Ranks that hold different tokens need different masks, ranks with the same tokens the same one.
  const auto fork = context_.rng().fork_if(tp_.splits_tokens());
  return ops::dropout(x, config_.embedding_dropout, context_.rng().generator());
}

at::Tensor GptModel::run_group(const at::Tensor& x, const nn::LayerInput& input, const VisualRows& visual, size_t first,
                               size_t count) const {
  at::Tensor out = x;
  if (adapters_) adapters_->state().training = input.training;  // set again: this may be the second run, in backward
  for (size_t i = first; i < first + count; ++i) {
    before_part(1 + i);
    out = layers_[i]->forward(out, input);
    out = add_deepstack(out, visual, place_.first_layer + static_cast<int64_t>(i));
  }
  return out;
}

// The input of a layer must be gone when its end decides what to send.
at::Tensor GptModel::run_offloaded(at::Tensor x, const nn::LayerInput& input, const VisualRows& visual) const {
  nn::ActivationOffload::Pass pass = offload_->begin();
  const int64_t sent = options_.offload.num_layers;
  for (int64_t i = 0; i < static_cast<int64_t>(layers_.size()); ++i) {
    {
      std::optional<nn::ActivationOffload::LayerScope> scope;
      if (i < sent) scope.emplace(pass);
      x = run_group(x, input, visual, static_cast<size_t>(i), 1);
    }
    // One layer more: its end frees the last copies, and its backward fetches them.
    if (i <= sent) pass.end_layer(i, x);
  }
  return x;
}

bool GptModel::is_below_trained(const at::Tensor& x, const VisualRows& visual, size_t first, size_t count) const {
  if (!trained_layers_ || x.requires_grad()) return false;
  if (visual.deepstack.defined() && visual.deepstack.requires_grad()) return false;
  for (size_t i = first; i < first + count; ++i)
    for (const nn::Parameter* parameter : parts_[1 + i])
      if (parameter->value.requires_grad()) return false;
  return true;
}

at::Tensor GptModel::run_layers(at::Tensor x, const nn::LayerInput& input, const VisualRows& visual) const {
  if (offload_ && input.training && at::GradMode::is_enabled()) return run_offloaded(std::move(x), input, visual);
  const RecomputePlan& plan = options_.recompute;
  // Runs a group of layers of which only the input is kept.
  const auto recomputed = [&](const at::Tensor& in, size_t first, size_t count) {
    const nn::KeepInputs keep{plan.split_over_tp && !tp_.splits_tokens() ? &tp_.group : nullptr};
    // Deepstack rows get gradients, so they are an input of the groups that add them.
    nn::TensorList inputs{in};
    if (visual.deepstack.defined() && static_cast<int64_t>(first) < visual.deepstack.size(1))
      inputs.push_back(visual.deepstack);
    return nn::recompute(
        [this, input, which = visual.which, first, count](const nn::TensorList& kept) {
          return run_group(kept[0], input, {{}, kept.size() > 1 ? kept[1] : at::Tensor(), which}, first, count);
        },
        inputs, random_ ? &context_.rng() : nullptr, keep);
  };
  // Evaluation and generation keep nothing for backward, so recomputation would only cost time.
  const bool on = input.training && plan.layers != RecomputePlan::Layers::kNone;
  const auto step = static_cast<size_t>(plan.layers == RecomputePlan::Layers::kUniform ? plan.num_layers : 1);
  for (size_t i = 0; i < layers_.size();) {
    const size_t count = std::min(on ? step : 1, layers_.size() - i);
    const bool twice =
        on && (plan.layers == RecomputePlan::Layers::kUniform || i < static_cast<size_t>(plan.num_layers));
    if (is_below_trained(x, visual, i, count)) {
      // Not recomputed, which would give the result a gradient. Products in fp8 and routers tell by the gradient mode
      // whether a pass is part of a step; nothing here requires a gradient either way.
      std::optional<at::NoGradGuard> no_grad;
      if (!options_.fp8 && !config_.moe) no_grad.emplace();
      x = run_group(x, input, visual, i, count);
    } else {
      x = twice ? recomputed(x, i, count) : run_group(x, input, visual, i, count);
    }
    i += count;
  }
  return x;
}

}  // namespace megalith::model
