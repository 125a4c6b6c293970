// The three ways to a model: with the weights of a folder, with a given configuration and another folder's weights, or
// with initial weights. In all of them overrides apply to the configuration before any parameter is allocated, and
// load_weights gets the configuration of the files as they are, to know what is new in the model.
#include "megalith/model/auto_model.h"

#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"

namespace megalith::model {

namespace {

// Returns this rank's chunks, without values.
VirtualModels make_chunks(const ModelConfig& config, const ModelSettings& settings,
                          parallel::ParallelContext& context) {
  return {config, settings.options, chunk_places(settings.stages, config, context), context};
}

}  // namespace

VirtualModels AutoModel::from_pretrained(const std::string& path_or_name, const ModelSettings& settings,
                                         parallel::ParallelContext& context, std::optional<int64_t> vocab_size,
                                         const hf::HubEnvironment& env) {
  const auto folder = hf::find_model_folder(path_or_name, env);
  const ModelConfig in_files = read_pretrained_config(folder);
  ModelConfig config = settings.overrides.applied_to(in_files);
  if (vocab_size) config.vocab_size = *vocab_size;
  VirtualModels models = make_chunks(config, settings, context);
  load_weights(models, folder, in_files, settings.seed, settings.new_tokens);
  return models;
}

VirtualModels AutoModel::with_weights(ModelConfig config, const std::filesystem::path& weights,
                                      const ModelSettings& settings, parallel::ParallelContext& context) {
  const ModelConfig in_files = read_model_config(weights, config.own_family);
  // A checkpoint of a run whose vocabulary grew has more rows than the configuration that the run was started with; one
  // of a run that has not grown yet has fewer than the overrides ask for.
  config.vocab_size = in_files.vocab_size;
  config = settings.overrides.applied_to(std::move(config));
  VirtualModels models = make_chunks(config, settings, context);
  load_weights(models, weights, in_files, settings.seed, settings.new_tokens);
  return models;
}

VirtualModels AutoModel::from_config(const ModelConfig& config, const ModelSettings& settings,
                                     parallel::ParallelContext& context) {
  VirtualModels models = make_chunks(settings.overrides.applied_to(config), settings, context);
  models.initialize_parameters(settings.seed);
  return models;
}

}  // namespace megalith::model
