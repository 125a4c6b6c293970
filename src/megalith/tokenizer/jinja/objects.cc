// Macros, loops and namespaces: the values that have state or can be called. Macros and loops hold the scope in which
// they were written, so a macro sees the variables around its definition (lexical scoping, as in jinja2), not its
// caller's.
#include "megalith/tokenizer/jinja/objects.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith::tokenizer::jinja {

// --------------------------------------------------------------------------------------------------------------- Macro

std::optional<Value> Macro::attribute(Evaluator&, std::string_view name) {
  if (name == "name") return Value::text(name_);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const auto& parameter : signature_.parameters) names.push_back(Value::text(parameter.text));
  return Value::tuple(std::move(names));
}

// Binds like Python; missing parameters are undefined, further ones go to varargs and kwargs if the body uses these.
void Macro::bind(Evaluator& evaluator, const Arguments& arguments, const ScopePtr& scope) const {
  const auto& parameters = signature_.parameters;
  std::vector<bool> is_set(parameters.size());
  std::vector<Value> rest;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < parameters.size()) {
      scope->set(parameters[i].name, arguments.positional[i]);
      is_set[i] = true;
    } else {
      rest.push_back(arguments.positional[i]);
    }
  }
  if (!rest.empty() && signature_.varargs < 0)
    evaluator.runtime().fail(fmt::format("macro '{}' takes not more than {} argument(s)", name_, parameters.size()));
  Dict more;
  for (const auto& [name, value] : arguments.named) {
    const auto match = std::ranges::find(parameters, name, &Signature::Parameter::text);
    if (match != parameters.end()) {
      scope->set(match->name, value);
      is_set[static_cast<size_t>(match - parameters.begin())] = true;
    } else if (name == "caller" && signature_.caller >= 0) {
      scope->set(signature_.caller, value);
    } else if (signature_.kwargs >= 0) {
      more.set(name, value);
    } else {
      evaluator.runtime().fail(fmt::format("macro '{}' takes no keyword argument '{}'", name_, name));
    }
  }
  if (signature_.varargs >= 0) scope->set(signature_.varargs, Value::tuple(std::move(rest)));
  if (signature_.kwargs >= 0) scope->set(signature_.kwargs, Value::dict(std::move(more)));
  // Defaults come last: their expressions may use the parameters that are set by now.
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_set[i]) continue;
    const auto& parameter = parameters[i];
    scope->set(parameter.name, parameter.otherwise
                                   ? evaluator.evaluate(*parameter.otherwise, scope)
                                   : Value::undefined(fmt::format("parameter '{}' was not provided", parameter.text)));
  }
}

Value Macro::call(Evaluator& evaluator, const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(scope_);
  bind(evaluator, arguments, scope);
  return evaluator.runtime().text(evaluator.render_body(body_, scope));
}

// ---------------------------------------------------------------------------------------------------------------- Loop

// The first call counts as a change.
bool Loop::changed(const Arguments& arguments) {
  Value now = Value::tuple(arguments.positional);
  const bool differs = !last_ || !equal(*last_, now);
  last_ = std::move(now);
  return differs;
}

// loop(children) renders the same body over the children, one level deeper.
Value Loop::call(Evaluator& evaluator, const Arguments& arguments) {
  Runtime& runtime = evaluator.runtime();
  if (!node_.recursive) runtime.fail("the loop is not recursive; write {% for … recursive %} to call it");
  const Bound bound(runtime, "loop", arguments, {"iterable"}, 1);
  return runtime.text(evaluator.render_loop(node_, bound.at(0), scope_, depth_ + 1));
}

std::optional<Value> Loop::attribute(Evaluator& evaluator, std::string_view name) {
  const auto size = static_cast<int64_t>(items_.size());
  const auto at = static_cast<int64_t>(position_);
  if (name == "index") return Value::integer(at + 1);
  if (name == "index0") return Value::integer(at);
  if (name == "revindex") return Value::integer(size - at);
  if (name == "revindex0") return Value::integer(size - at - 1);
  if (name == "first") return Value::boolean(at == 0);
  if (name == "last") return Value::boolean(at + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(depth_);
  if (name == "depth0") return Value::integer(depth_ - 1);
  if (name == "previtem") return at > 0 ? items_[position_ - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return at + 1 < size ? items_[position_ + 1] : Value::undefined("there is no next item");
  // loop.cycle('odd', 'even'): the argument at the position, modulo their number.
  if (name == "cycle") {
    return Value::object(evaluator.runtime().make<Function>([this](Evaluator& e, const Arguments& arguments) {
      if (arguments.positional.empty()) e.runtime().fail("no items for cycling given");
      return arguments.positional[position_ % arguments.positional.size()];
    }));
  }
  if (name == "changed") {
    return Value::object(evaluator.runtime().make<Function>(
        [this](Evaluator&, const Arguments& arguments) { return Value::boolean(changed(arguments)); }));
  }
  return std::nullopt;
}

// ----------------------------------------------------------------------------------------------------------- Namespace

std::optional<Value> Namespace::attribute(Evaluator&, std::string_view name) {
  const Value* value = values_.find(name);
  return value ? std::optional(*value) : std::nullopt;
}

void Namespace::set(Runtime& runtime, std::string_view name, Value value) {
  if (name.starts_with('_'))
    runtime.fail(
        fmt::format("a namespace cannot hold '{}': attributes with an underscore in front are not allowed", name));
  runtime.pay_bytes(sizeof(Dict::Entry));
  values_.set(name, std::move(value));
}

}  // namespace megalith::tokenizer::jinja
