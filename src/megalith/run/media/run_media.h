// Media of a run: whether its data has some, and how files of media become the input of the model's towers.
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/model/families/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::run {

// Returns the towers that the run's data needs: whether any dataset, for training or evaluation, has a column of images
// or videos, or one of sounds (with use_audio_in_video, also one of videos). Throws like data::find_datasets.
model::TowerChoice towers_for(const config::TrainingArguments& args);

// Throws ConfigError for options that have no effect: media for a model without the tower, parts to freeze or to train
// that the model does not have, or that no medium of the data reaches. `media` are the towers that the data needs.
void check_towers(const config::TrainingArguments& args, const model::ModelConfig& in_files,
                  const model::TowerChoice& media);

// Returns how records with media become tokens of a model with towers: the processors of its folder for the towers that
// it has here, within the limits of the options. Throws ConfigError for a tokenizer whose placeholders are not those of
// config.json, and DataError for a folder without its processor's files, or with those of another model.
data::MediaSettings media_settings(const config::TrainingArguments& args, const std::filesystem::path& folder,
                                   const model::ModelConfig& config,
                                   const std::optional<tokenizer::Tokenizer>& tokenizer);

}  // namespace megalith::run
