// nlohmann prints {"a":1,"b":[1,2]}; Python prints {"a": 1, "b": [1, 2]}, which is what models were trained on.
#include "megalith/data/sft/python_json.h"

#include <nlohmann/json.hpp>

#include "megalith/tokenizer/text/python_text.h"

namespace megalith::data {
namespace {

// Strings, integers and constants print alike in both; only separators and floats differ.
void append(const io::Json& value, std::string& text) {
  if (value.is_object()) {
    text += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) text += ", ";
      text += io::Json(key).dump() + ": ";
      append(member, text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) text += ", ";
      append(value[i], text);
    }
    text += ']';
  } else if (value.is_number_float()) {
    text += tokenizer::python_repr(value.get<double>());
  } else {
    text += value.dump();
  }
}

}  // namespace

std::string python_json(const io::Json& value) {
  std::string text;
  append(value, text);
  return text;
}

}  // namespace megalith::data
