// Converts the variables from JSON, checks them (UTF-8, 64 bits, depth), and runs the evaluator. Checking once here
// means that no filter has to: every text that a template sees is valid UTF-8, and every whole number has 64 bits. A
// parsed tree is immutable, so all state of a rendering lives in a Runtime and an Evaluator that render() makes.
#include "megalith/tokenizer/jinja/template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/parser.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 150;  // deeper input would exhaust the stack of recursive functions

// `path` names the value in messages: "messages[2].content".
Value value_of(const Json& json, const std::string& path, int depth);

// Throws a DataError that names the value and the byte for a text that is not UTF-8.
Value text_of(const std::string& text, const std::string& path) {
  if (const auto bad = first_invalid_utf8(text))
    throw DataError(fmt::format("{}: byte {} of the text is 0x{:02X}, which is not valid UTF-8", path, *bad,
                                static_cast<unsigned char>(text[*bad])));
  return Value::text(text);
}

// Python's numbers have any size; larger ones than int64 are refused instead of rounded.
Value number_of(const Json& json, const std::string& path) {
  if (json.is_number_float()) return Value::real(json.get<double>());
  const bool too_large = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  check<DataError>(!too_large, "{} is {}; whole numbers up to {} are supported", path, json.dump(), INT64_MAX);
  return Value::integer(json.get<int64_t>());
}

// Keeps the order of the keys, which |tojson and loops over a message show.
Dict dict_of(const Json& json, const std::string& path, int depth) {
  Dict dict;
  for (const auto& [key, value] : json.items()) {
    const std::string place = path.empty() ? key : path + "." + key;
    dict.set(text_of(key, place), value_of(value, place, depth + 1));
  }
  return dict;
}

Value value_of(const Json& json, const std::string& path, int depth) {
  check<DataError>(depth <= kMaxJsonDepth, "{}: values are nested more than {} levels deep", path, kMaxJsonDepth);
  switch (json.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
    case Json::value_t::binary:
      return Value();
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::string:
      return text_of(json.get_ref<const std::string&>(), path);
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return number_of(json, path);
    case Json::value_t::array: {
      std::vector<Value> items;
      for (size_t i = 0; i < json.size(); ++i)
        items.push_back(value_of(json[i], fmt::format("{}[{}]", path, i), depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object:
      return Value::dict(dict_of(json, path, depth));
  }
  return Value();
}

}  // namespace

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), tree_(std::make_shared<const Tree>(parse_template(source, name_))) {}

bool Template::marks_generation() const { return tree_->marks_generation; }

Rendered Template::render(const Json& variables, const RenderOptions& options) const {
  check(variables.is_object(), "the variables of a template are a {}, not an object", variables.type_name());
  const Dict values = dict_of(variables, "", 0);
  Runtime runtime(name_, options);
  return Evaluator(*tree_, runtime, options.limits.output_bytes).run(values);
}

}  // namespace megalith::tokenizer::jinja
