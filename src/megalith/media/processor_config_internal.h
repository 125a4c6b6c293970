// Reads the settings that preprocessor_config.json and video_preprocessor_config.json share.
#pragma once

#include "megalith/io/json_reader.h"
#include "megalith/media/image_processor.h"

namespace megalith::media {

// Returns `settings` with the fields of the file in place of the defaults.
ImageProcessorSettings read_model_part(const io::JsonFields& fields, ImageProcessorSettings settings);

}  // namespace megalith::media
