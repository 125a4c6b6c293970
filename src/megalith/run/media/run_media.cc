#include "megalith/run/media/run_media.h"

#include <algorithm>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/video_processor.h"

namespace megalith::run {

namespace {

// The rows of a tower stand where the ids of config.json are. That the token exists is checked when records are read.
void check_placeholder(const tokenizer::Tokenizer& tokenizer, const std::string& token, const char* key,
                       int64_t in_config) {
  const auto id = tokenizer.id_of(token);
  check<ConfigError>(!id || *id == in_config,
                     "the tokenizer's {} is the token {}, and {} in config.json {}; the tokenizer belongs to another"
                     " model",
                     token, id.value_or(-1), key, in_config);
}

}  // namespace

bool reads_media(const config::DataConfig& data) {
  for (const auto* names : {&data.dataset, &data.eval_dataset}) {
    const auto datasets = data::find_datasets(*names, data.dataset_dir);
    if (std::ranges::any_of(datasets, [](const data::DatasetDescription& dataset) {
          return !dataset.columns.images.empty() || !dataset.columns.videos.empty();
        }))
      return true;
  }
  return false;
}

void check_towers(const config::TrainingArguments& args, const model::ModelConfig& in_files, bool media) {
  const config::TowerConfig& towers = args.towers;
  check<ConfigError>(
      !media || in_files.vision,
      "the data has images or videos, but {} models have no vision tower; train a model that sees (qwen2_vl,"
      " qwen2_5_vl, qwen3_vl, …), or leave the column out of dataset_info.json",
      in_files.family);
  const char* option = !towers.freeze_vision_tower            ? "freeze_vision_tower false"
                       : !towers.freeze_multi_modal_projector ? "freeze_multi_modal_projector false"
                       : towers.freeze_language_model         ? "freeze_language_model"
                                                              : nullptr;
  check<ConfigError>(media || option == nullptr,
                     "{} has nothing to train: {}. Leave it out, or give data with a column of images or videos"
                     " (\"images\", \"videos\" in the columns of dataset_info.json)",
                     option ? option : "",
                     in_files.vision ? "no dataset has images or videos"
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
  // Where time patches are blocks of their own, the limits of pixels are those of a whole video.
  settings.video_blocks = config.media->positions.time == layout::TimeRule::kBlocks;
  if (config.media->video >= 0) {
    media::VideoProcessorSettings videos = media::read_video_processor(folder, settings.video_blocks);
    videos.video_max_pixels = args.media.video_max_pixels;
    videos.video_min_pixels = args.media.video_min_pixels;
    settings.videos = std::make_shared<const media::VideoProcessor>(videos);
    settings.video_fps = args.media.video_fps;
    settings.video_maxlen = args.media.video_maxlen;
  }
  settings.media_dir = args.media.media_dir.value_or(args.data.dataset_dir);
  settings.skip_broken = args.media.skip_broken_media;
  settings.decode_all = args.media.verify_media;
  if (tokenizer) {
    check_placeholder(*tokenizer, settings.image_pad, "image_token_id", config.media->image);
    if (settings.videos) check_placeholder(*tokenizer, settings.video_pad, "video_token_id", config.media->video);
  }
  return settings;
}

}  // namespace megalith::run
