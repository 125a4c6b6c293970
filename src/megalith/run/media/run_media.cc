#include "megalith/run/media/run_media.h"

#include <memory>

#include "megalith/base/error.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
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

model::TowerChoice towers_for(const config::TrainingArguments& args) {
  model::TowerChoice towers{.vision = false, .audio = false};
  for (const auto* names : {&args.data.dataset, &args.data.eval_dataset}) {
    for (const data::DatasetDescription& dataset : data::find_datasets(*names, args.data.dataset_dir)) {
      const data::Columns& columns = dataset.columns;
      towers.vision = towers.vision || !columns.images.empty() || !columns.videos.empty();
      towers.audio =
          towers.audio || !columns.audios.empty() || (args.media.use_audio_in_video && !columns.videos.empty());
    }
  }
  return towers;
}

void check_towers(const config::TrainingArguments& args, const model::ModelConfig& in_files,
                  const model::TowerChoice& media) {
  const config::TowerConfig& towers = args.towers;
  check<ConfigError>(
      !media.vision || in_files.vision,
      "the data has images or videos, but {} models have no vision tower; train a model that sees (qwen2_vl,"
      " qwen2_5_vl, qwen3_vl, …), or leave the column out of dataset_info.json",
      in_files.family);
  check<ConfigError>(!args.media.use_audio_in_video || in_files.audio,
                     "use_audio_in_video is for models that hear (qwen3_omni_moe), and {} models have no audio tower;"
                     " leave it out",
                     in_files.family);
  check<ConfigError>(!media.audio || in_files.audio,
                     "the data has sounds, but {} models have no audio tower; train a model that hears"
                     " (qwen3_omni_moe), or leave the column \"audios\" out of dataset_info.json",
                     in_files.family);
  check<ConfigError>(!args.media.use_audio_in_video || media.vision,
                     "use_audio_in_video has no effect: no dataset has a column of videos. Leave it out, or name the"
                     " column in dataset_info.json (\"videos\")");
  const char* option = !towers.freeze_vision_tower            ? "freeze_vision_tower false"
                       : !towers.freeze_multi_modal_projector ? "freeze_multi_modal_projector false"
                       : towers.freeze_language_model         ? "freeze_language_model"
                                                              : nullptr;
  check<ConfigError>(media.vision || media.audio || option == nullptr,
                     "{} has nothing to train: {}. Leave it out, or give data with a column of images, videos or sounds"
                     " (\"images\", \"videos\", \"audios\" in the columns of dataset_info.json)",
                     option ? option : "",
                     in_files.vision ? "no dataset has images or videos"
                                     : in_files.family + " models have no vision tower, and the data has no images");
}

namespace {

std::shared_ptr<const media::ImageProcessor> image_processor(const config::TrainingArguments& args,
                                                             const std::filesystem::path& folder,
                                                             const nn::VisionShape& tower) {
  media::ImageProcessorSettings images = media::read_image_processor(folder);
  images.image_max_pixels = args.media.image_max_pixels;
  images.image_min_pixels = args.media.image_min_pixels;
  check<ConfigError>(
      images.patch_size == tower.patch && images.temporal_patch_size == tower.time_patch &&
          images.merge_size == tower.merge,
      "the image processor of {} cuts patches of {} x {} pixels and {} frames, {} x {} of them per token, but the"
      " vision tower in config.json takes {} x {}, {} and {} x {}; the files belong to different models",
      folder.string(), images.patch_size, images.patch_size, images.temporal_patch_size, images.merge_size,
      images.merge_size, tower.patch, tower.patch, tower.time_patch, tower.merge, tower.merge);
  return std::make_shared<const media::ImageProcessor>(images);
}

std::shared_ptr<const media::VideoProcessor> video_processor(const config::TrainingArguments& args,
                                                             const std::filesystem::path& folder, bool blocks) {
  // Where time patches are blocks of their own, the limits of pixels are those of a whole video.
  media::VideoProcessorSettings videos = media::read_video_processor(folder, blocks);
  videos.video_max_pixels = args.media.video_max_pixels;
  videos.video_min_pixels = args.media.video_min_pixels;
  return std::make_shared<const media::VideoProcessor>(videos);
}

std::shared_ptr<const media::SoundProcessor> sound_processor(const std::filesystem::path& folder,
                                                             const nn::AudioShape& tower) {
  const media::SoundProcessorSettings sounds{.bins = tower.mel_bins, .chunk = tower.chunk};
  media::check_feature_extractor(folder, sounds);
  return std::make_shared<const media::SoundProcessor>(sounds);
}

}  // namespace

data::MediaSettings media_settings(const config::TrainingArguments& args, const std::filesystem::path& folder,
                                   const model::ModelConfig& config,
                                   const std::optional<tokenizer::Tokenizer>& tokenizer) {
  data::MediaSettings settings;
  settings.positions = config.media->positions;
  settings.video_blocks = settings.positions.time == layout::TimeRule::kBlocks;
  if (config.vision) settings.images = image_processor(args, folder, *config.vision);
  if (config.vision && config.media->video >= 0) {
    settings.videos = video_processor(args, folder, settings.video_blocks);
    settings.video_fps = args.media.video_fps;
    settings.video_maxlen = args.media.video_maxlen;
  }
  if (config.audio) settings.sounds = sound_processor(folder, *config.audio);
  settings.audio_in_video = args.media.use_audio_in_video;
  settings.media_dir = args.media.media_dir.value_or(args.data.dataset_dir);
  settings.skip_broken = args.media.skip_broken_media;
  settings.decode_all = args.media.verify_media;
  if (!tokenizer) return settings;
  if (settings.images) check_placeholder(*tokenizer, settings.image_pad, "image_token_id", config.media->image);
  if (settings.videos) check_placeholder(*tokenizer, settings.video_pad, "video_token_id", config.media->video);
  if (settings.sounds) check_placeholder(*tokenizer, settings.sound_pad, "audio_token_id", config.media->audio);
  return settings;
}

}  // namespace megalith::run
