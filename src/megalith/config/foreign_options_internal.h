// Options of other programs (Megatron-LM, Hugging Face, LLaMA-Factory, ROLL) that Megalith knows but does not act on.
//
// They are data: foreign_options.txt holds one line for each and is compiled in by cmake/EmbedFiles.cmake. The head of
// that file explains its format.
#pragma once

#include <string_view>
#include <vector>

namespace megalith::config {

struct Option;

// The contents of foreign_options.txt.
extern const std::string_view foreign_options_txt;

// Returns `own` with the options of `text` inserted where its sections say. Names that occur twice are left for
// OptionTable to find. Throws InternalError with the number of the first line that does not follow the format.
std::vector<Option> with_foreign_options(std::vector<Option> own, std::string_view text);

}  // namespace megalith::config
