// Options of models that see and hear. Names and defaults are LLaMA-Factory's; those of the learning rates are
// ms-swift's.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {

void add_media_options(OptionList& list) {
  list.topic("Images, videos and sounds");
  auto media = list.part(&TrainingArguments::media);
  media.add("media_dir", &MediaConfig::media_dir, "folder of media with relative paths (none: dataset_dir)")
      .train_only();
  media
      .add("skip_broken_media", &MediaConfig::skip_broken_media,
           "leave out records whose media are missing or damaged, and count them, instead of ending the run")
      .train_only();
  media
      .add("verify_media", &MediaConfig::verify_media,
           "decode all media while tokenizing: damage is named before training; skip_broken_media does so, too")
      .train_only();
  media.add("image_max_pixels", &MediaConfig::image_max_pixels, "larger images are scaled down")
      .at_least(1)
      .train_only();
  media.add("image_min_pixels", &MediaConfig::image_min_pixels, "smaller images are scaled up")
      .at_least(1)
      .train_only();

  media.add("video_max_pixels", &MediaConfig::video_max_pixels, "larger frames of videos are scaled down")
      .at_least(1)
      .train_only();
  media.add("video_min_pixels", &MediaConfig::video_min_pixels, "smaller frames of videos are scaled up")
      .at_least(1)
      .train_only();
  media
      .add("video_fps", &MediaConfig::video_fps,
           "frames taken of a second of a video file; frames per second of a video that is a list of images")
      .at_least(0.001)
      .train_only();
  media.add("video_maxlen", &MediaConfig::video_maxlen, "the most frames taken of a video file")
      .at_least(1)
      .train_only();

  media
      .add("use_audio_in_video", &MediaConfig::use_audio_in_video,
           "read videos with sound: that of the <audio> after each <video>, or of the video's file")
      .train_only();

  auto towers = list.part(&TrainingArguments::towers);
  towers
      .add("freeze_vision_tower", &TowerConfig::freeze_vision_tower,
           "do not train vision and audio tower: patches, positions, convolutions, blocks, deepstack mergers")
      .train_only();
  towers
      .add("freeze_multi_modal_projector", &TowerConfig::freeze_multi_modal_projector,
           "do not train the merger between vision tower and language model, and the audio tower's projector")
      .train_only();
  towers
      .add("freeze_language_model", &TowerConfig::freeze_language_model,
           "do not train embedding, layers, final norm and head")
      .train_only();
  towers.add("vit_lr", &TowerConfig::vision_tower_lr, "peak learning rate of the vision tower (none: learning_rate)")
      .at_least(0)
      .train_only();
  towers.add("aligner_lr", &TowerConfig::projector_lr, "peak learning rate of the merger (none: learning_rate)")
      .at_least(0)
      .train_only();
}

}  // namespace megalith::config
