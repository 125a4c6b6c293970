// JSON as Python's json.dumps(value, ensure_ascii=False) writes it: ", " and ": " between parts, numbers as Python's
// repr. Prompts of tools hold such text, and ids depend on every blank.
#pragma once

#include <string>

#include "megalith/io/json_text.h"

namespace megalith::data {

std::string python_json(const io::Json& value);

}  // namespace megalith::data
