#include "megalith/data/sft/python_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace megalith::data {
namespace {

// fmt writes the shortest digits, with an exponent below -4 and from 16 on: Python's repr but for ".0".
std::string python_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void append(const hf::Json& value, std::string& text) {
  if (value.is_object()) {
    text += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) text += ", ";
      text += hf::Json(key).dump() + ": ";
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
    text += python_number(value.get<double>());
  } else {
    text += value.dump();
  }
}

}  // namespace

std::string python_json(const hf::Json& value) {
  std::string text;
  append(value, text);
  return text;
}

}  // namespace megalith::data
