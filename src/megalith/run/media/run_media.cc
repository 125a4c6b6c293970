#include "megalith/run/media/run_media.h"

#include <algorithm>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/media/image_processor.h"

namespace megalith::run {

bool reads_media(const config::DataConfig& data) {
  for (const auto* names : {&data.dataset, &data.eval_dataset}) {
    const auto datasets = data::find_datasets(*names, data.dataset_dir);
    if (std::ranges::any_of(datasets, [](const auto& dataset) { return !dataset.columns.images.empty(); })) return true;
  }
  return false;
}

void check_towers(const config::TrainingArguments& args, const model::ModelConfig& in_files, bool media) {
  const config::TowerConfig& towers = args.towers;
  check<ConfigError>(!media || in_files.vision,
                     "the data has images, but {} models have no vision tower; train a model that sees (qwen2_vl,"
                     " qwen2_5_vl, qwen3_vl, …), or leave the column out of dataset_info.json",
                     in_files.family);
  const char* option = !towers.freeze_vision_tower            ? "freeze_vision_tower false"
                       : !towers.freeze_multi_modal_projector ? "freeze_multi_modal_projector false"
                       : towers.freeze_language_model         ? "freeze_language_model"
                                                              : nullptr;
  check<ConfigError>(media || option == nullptr,
                     "{} has nothing to train: {}. Leave it out, or give data with a column of images (\"images\" in"
                     " the columns of dataset_info.json)",
                     option ? option : "",
                     in_files.vision ? "no dataset has images"
                                     : in_files.family + " models have no vision tower, and the data has no images");
}

data::MediaSettings media_settings(const config::TrainingArguments& args, const std::filesystem::path& folder,
                                   const model::ModelConfig& config,
                                   const std::optional<tokenizer::Tokenizer>& tokenizer) {
  data::MediaSettings settings;
  media::ImageProcessorSettings images = media::read_image_processor(folder);
  images.image_max_pixels = args.media.image_max_pixels;
  images.image_min_pixels = args.media.image_min_pixels;
  const nn::VisionShape& tower = *config.vision;
  check<ConfigError>(
      images.patch_size == tower.patch && images.temporal_patch_size == tower.time_patch &&
          images.merge_size == tower.merge,
      "the image processor of {} cuts patches of {} x {} pixels and {} frames, {} x {} of them per token, but the"
      " vision tower in config.json takes {} x {}, {} and {} x {}; the files belong to different models",
      folder.string(), images.patch_size, images.patch_size, images.temporal_patch_size, images.merge_size,
      images.merge_size, tower.patch, tower.patch, tower.time_patch, tower.merge, tower.merge);
  settings.images = std::make_shared<const media::ImageProcessor>(images);
  settings.media_dir = args.media.media_dir.value_or(args.data.dataset_dir);
  settings.skip_broken = args.media.skip_broken_media;
  if (!tokenizer) return settings;
  const auto id = tokenizer->id_of(settings.image_pad);
  check<ConfigError>(!id || *id == config.media->image,
                     "the tokenizer's {} is the token {}, and image_token_id in config.json {}; the tokenizer belongs"
                     " to another model",
                     settings.image_pad, id.value_or(-1), config.media->image);
  return settings;
}

}  // namespace megalith::run
