// Media of a run: whether its data has some, and how files of pictures become the input of the model's towers.
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/model/families/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::run {

// Returns whether any dataset of the run, for training or evaluation, has a column of media. Throws like
// data::find_datasets.
bool reads_media(const config::DataConfig& data);

// Throws ConfigError for options that have no effect: media for a model without towers, parts to freeze or to train
// that the model does not have, or that no medium of the data reaches. `media` says whether the data has some.
void check_towers(const config::TrainingArguments& args, const model::ModelConfig& in_files, bool media);

// Returns how records with media become tokens of a model with towers: the processor of its folder, within the limits
// of the options. Throws ConfigError for a tokenizer whose placeholders are not those of config.json, and DataError for
// a folder without its processor's files.
data::MediaSettings media_settings(const config::TrainingArguments& args, const std::filesystem::path& folder,
                                   const model::ModelConfig& config,
                                   const std::optional<tokenizer::Tokenizer>& tokenizer);

}  // namespace megalith::run
