// Writes JSON as Python's json.dumps(value, ensure_ascii=False) does: ", " and ": " between parts, numbers as by
// Python's repr. Prompts that describe tools contain such text, and token ids depend on every space.
#pragma once

#include <string>

#include "megalith/io/json_text.h"

namespace megalith::data {

// Returns `value` as such text.
std::string python_json(const io::Json& value);

}  // namespace megalith::data
