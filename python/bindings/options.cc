// From Python values to options and back. A value takes the form that it would have in a file of options, so that the
// parser's own rules for types, choices and ranges hold, and its messages are those of the program.
#include "options.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/config/option_table.h"

namespace megalith::python {

namespace {

using config::RawValue;

// Returns a scalar as the word that a file would have. Text is taken as it is; everything else as Python writes it.
std::string word_of(const std::string& name, py::handle value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>() ? "true" : "false";
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance<py::int_>(value) || py::isinstance<py::float_>(value)) return py::str(value).cast<std::string>();
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")()).cast<std::string>();
  // Members of enumerations whose values are words, as in transformers: IntervalStrategy.STEPS.
  if (py::hasattr(value, "value") && py::isinstance<py::str>(value.attr("value")))
    return value.attr("value").cast<std::string>();
  throw ConfigError(fmt::format("{} is a {}; an option takes text, numbers, booleans, None, lists of these or a dict",
                                name, py::str(py::type::of(value).attr("__name__")).cast<std::string>()));
}

RawValue raw_value(const std::string& name, py::handle value) {
  if (value.is_none()) return {RawValue::Kind::kNull, {}};
  if (py::isinstance<py::dict>(value)) {
    const py::object text = py::module_::import("json").attr("dumps")(value);
    return {RawValue::Kind::kJson, {text.cast<std::string>()}};
  }
  RawValue raw{RawValue::Kind::kWords, {}};
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    for (const py::handle item : value) raw.words.push_back(word_of(name, item));
  } else {
    raw.words.push_back(word_of(name, value));
  }
  return raw;
}

py::object to_python(const config::Value& value) {
  return std::visit(
      [](const auto& held) -> py::object {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return py::none();
        else if constexpr (std::is_same_v<T, config::JsonObject>)
          return py::module_::import("json").attr("loads")(held.text);
        else
          return py::cast(held);
      },
      value);
}

Options parse(const py::dict& given, const std::optional<std::string>& file) {
  std::vector<config::NamedValue> values;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    values.push_back({name, raw_value(name, value)});
  }
  return {config::parse_named(config::Dialect::kTrain, values, file)};
}

// Options that nothing reads have no member; they are at the value that was given, or at their default.
py::object value_of(const config::TrainingArguments& args, const config::Option& option) {
  if (option.read) return to_python(option.read(args));
  return to_python(option.default_value(args.dialect));
}

py::object get(const Options& options, const std::string& name) {
  const auto match = config::OptionTable::instance().find(name);
  if (!match || match->negated) throw py::attribute_error(fmt::format("there is no option {}", name));
  return value_of(options.parsed.args, *match->option);
}

}  // namespace

py::dict options_dict(const config::TrainingArguments& args) {
  py::dict result;
  for (const config::Option& option : config::OptionTable::instance().options())
    if (option.read) result[py::str(option.name)] = value_of(args, option);
  return result;
}

void bind_options(py::module_& module) {
  py::class_<Options, std::shared_ptr<Options>>(module, "Options")
      .def(py::init(&parse), py::arg("given"), py::arg("file") = std::nullopt)
      .def("get", &get, py::arg("name"))
      .def("all", [](const Options& options) { return options_dict(options.parsed.args); })
      .def("notes", [](const Options& options) { return options.parsed.notes; })
      .def("to_yaml", [](const Options& options) { return config::to_yaml(options.parsed.args); })
      .def(
          "same_as", [](const Options& a, const Options& b) { return a.parsed.args == b.parsed.args; },
          py::arg("other"));
  // The one name of an option, whichever of its spellings is given; None for what is not an option.
  module.def("canonical_name", [](const std::string& name) -> std::optional<std::string> {
    const auto match = config::OptionTable::instance().find(name);
    if (!match || match->negated) return std::nullopt;
    return match->option->name;
  });
}

}  // namespace megalith::python
