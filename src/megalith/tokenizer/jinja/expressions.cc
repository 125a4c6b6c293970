// Expressions: computes the value of a node. Undefined values are passed on and fail only when they are used, as in
// jinja2: {{ a.b }} with an undefined a fails, {{ a }} prints nothing, and "a is defined" is false. Each expression
// holds a Level while its operands are evaluated, so the depth of the stack is bounded by Limits::depth.
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/text.h"
#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/objects.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

// Returns jinja2's name for an object in the message about an undefined attribute.
std::string described(const Value& value) {
  return value.is_none() ? "None" : fmt::format("{} object", value.type_name());
}

// The value of a missing attribute, with jinja2's message.
Value undefined_attribute(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", described(object), name));
}

// obj[key] of Python; std::nullopt when there is no such element.
std::optional<Value> element(const Value& object, const Value& key) {
  if (object.is(Value::Kind::kDict)) {
    const Value* found = object.as_dict().find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto index = key.whole_number();
  if (!index) return std::nullopt;
  // Negative indices count from the end.
  const auto wrapped = [&](size_t size) -> std::optional<size_t> {
    const int64_t at = *index < 0 ? *index + static_cast<int64_t>(size) : *index;
    return at < 0 || at >= static_cast<int64_t>(size) ? std::nullopt : std::optional(static_cast<size_t>(at));
  };
  if (object.is(Value::Kind::kSequence) && object.as_sequence().has_elements()) {
    const auto at = wrapped(object.as_sequence().items.size());
    return at ? std::optional(object.as_sequence().items[*at]) : std::nullopt;
  }
  // text[i] is the i-th character, which needs the offsets of all of them: UTF-8 has no index.
  if (object.is_string()) {
    const std::string& text = object.as_text();
    const std::vector<size_t> offsets = character_offsets(text);
    const auto at = wrapped(offsets.size() - 1);
    if (at) return Value::text(text.substr(offsets[*at], offsets[*at + 1] - offsets[*at]));
  }
  return std::nullopt;
}

}  // namespace

Value Evaluator::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Runtime::Level level(runtime_);
  runtime_.step();
  runtime_.set_line(expression.line);
  return std::visit([&](const auto& node) { return value_of(node, scope); }, expression.node);
}

// Globals are in the outermost frame, so one search covers variables and functions.
Value Evaluator::value_of(const NameExpression& node, const ScopePtr& scope) {
  const Value* value = scope->find(node.name);
  if (value != nullptr) return *value;
  return Value::undefined(fmt::format("'{}' is undefined", tree_.names[static_cast<size_t>(node.name)]));
}

Value Evaluator::value_of(const ListExpression& node, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item, scope));
  return runtime_.sequence(node.is_tuple ? Sequence::Kind::kTuple : Sequence::Kind::kList, std::move(items));
}

// Python calls lists and dictionaries unhashable; the same keys are refused here.
Value Evaluator::value_of(const DictExpression& node, const ScopePtr& scope) {
  Dict dict;
  for (const auto& [key_node, value_node] : node.entries) {
    const Value key = evaluate(*key_node, scope);
    const bool is_list = key.is(Value::Kind::kSequence) && key.as_sequence().kind == Sequence::Kind::kList;
    if (is_list || key.is(Value::Kind::kDict))
      runtime_.fail(fmt::format("a {} cannot be the key of a dictionary", key.type_name()));
    dict.set(key, evaluate(*value_node, scope));
  }
  return runtime_.dict(std::move(dict));
}

Value Evaluator::value_of(const UnaryExpression& node, const ScopePtr& scope) {
  const Value operand = evaluate(*node.operand, scope);
  if (node.op == UnaryOperator::kNot) return Value::boolean(!operand.truth());
  return negated(*this, operand, node.op);
}

// `and` and `or` return one of their operands, not a bool, and evaluate the right one only if it is needed.
Value Evaluator::value_of(const BinaryExpression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.left, scope);
  if (node.op == BinaryOperator::kAnd) return left.truth() ? evaluate(*node.right, scope) : left;
  if (node.op == BinaryOperator::kOr) return left.truth() ? left : evaluate(*node.right, scope);
  return arithmetic(*this, node.op, left, evaluate(*node.right, scope));
}

// Each partial text is charged, so a chain pays for the copies that growing it makes.
Value Evaluator::value_of(const ConcatExpression& node, const ScopePtr& scope) {
  std::string text;
  for (const ExpressionPtr& part : node.parts) {
    text += to_text(*this, evaluate(*part, scope));
    runtime_.pay_bytes(text.size());
  }
  return runtime_.text(std::move(text));
}

// a < b < c is (a < b) and (b < c) with b evaluated once, and c not at all if the first comparison fails.
Value Evaluator::value_of(const ComparisonExpression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.first, scope);
  for (const auto& [op, other] : node.others) {
    Value right = evaluate(*other, scope);
    if (!compare(*this, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

// Without an else, a false condition gives an undefined value, which prints as nothing.
Value Evaluator::value_of(const ConditionalExpression& node, const ScopePtr& scope) {
  if (evaluate(*node.condition, scope).truth()) return evaluate(*node.then, scope);
  if (node.otherwise) return evaluate(*node.otherwise, scope);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Evaluator::value_of(const AttributeExpression& node, const ScopePtr& scope) {
  return attribute(evaluate(*node.object, scope), node.name);
}

Value Evaluator::value_of(const SubscriptExpression& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.object, scope);
  return subscript(object, evaluate(*node.key, scope));
}

Value Evaluator::value_of(const SliceExpression& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.object, scope);
  const auto bound = [&](const ExpressionPtr& e) { return e ? evaluate(*e, scope) : Value(); };
  const Value start = bound(node.start), stop = bound(node.stop), step = bound(node.step);
  return slice(*this, object, start, stop, step);
}

// Evaluates all arguments, and unpacks *args and **kwargs.
Arguments Evaluator::arguments_of(const CallArguments& node, const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& value : node.positional) arguments.positional.push_back(evaluate(*value, scope));
  for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value, scope));
  if (node.more_positional)
    for (Value& value : iterate(evaluate(*node.more_positional, scope)))
      arguments.positional.push_back(std::move(value));
  if (node.more_named) {
    const Value more = evaluate(*node.more_named, scope);
    // f(**mapping); its keys become names of arguments.
    if (!more.is(Value::Kind::kDict)) runtime_.fail("the argument after ** must be a mapping");
    for (const auto& [key, value] : more.as_dict().entries()) {
      if (!key.is_string()) runtime_.fail("keywords must be strings");
      arguments.named.emplace_back(key.as_text(), value);
    }
  }
  return arguments;
}

Value Evaluator::value_of(const CallExpression& node, const ScopePtr& scope) {
  // A method is called directly, without making an object of it first.
  if (const auto* member = std::get_if<AttributeExpression>(&node.callee->node)) {
    const Value object = evaluate(*member->object, scope);
    if (const Method method = find_method(object, member->name)) {
      const Arguments arguments = arguments_of(node.arguments, scope);
      runtime_.set_line(node.callee->line);
      return method(*this, object, arguments);
    }
    const Value callee = attribute(object, member->name);
    return call(callee, arguments_of(node.arguments, scope));
  }
  const Value callee = evaluate(*node.callee, scope);
  const Arguments arguments = arguments_of(node.arguments, scope);
  runtime_.set_line(node.callee->line);
  return call(callee, arguments);
}

// Filters and tests are looked up when they run, so an unknown one in a branch that is not taken does no harm.
Value Evaluator::value_of(const FilterExpression& node, const ScopePtr& scope) {
  const Value input = evaluate(*node.input, scope);
  const Arguments arguments = arguments_of(node.arguments, scope);
  return call_filter(node.name, input, arguments);
}

Value Evaluator::value_of(const TestExpression& node, const ScopePtr& scope) {
  const Value input = evaluate(*node.input, scope);
  const Arguments arguments = arguments_of(node.arguments, scope);
  return Value::boolean(call_test(node.name, input, arguments));
}

// ------------------------------------------------------------------------------------------------ attributes and calls

// As in the sandbox: names that start with "__" and methods that change an object are unsafe.
Value Evaluator::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) runtime_.fail(object.undefined_message());
  if (object.is(Value::Kind::kObject)) {
    if (auto value = object.as_object().attribute(*this, name)) return *value;
    return undefined_attribute(object, name);
  }
  if (changes_object(object, name) || name.starts_with("__"))
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name, object.type_name()));
  if (const Method method = find_method(object, name)) {
    return Value::object(runtime_.make<Function>([method, object](Evaluator& evaluator, const Arguments& arguments) {
      return method(evaluator, object, arguments);
    }));
  }
  if (object.is(Value::Kind::kDict))
    if (const Value* value = object.as_dict().find(name)) return *value;
  return undefined_attribute(object, name);
}

// An undefined result is not an error yet; its message appears if it is used.
Value Evaluator::subscript(const Value& object, const Value& key) {
  if (object.is_undefined()) runtime_.fail(object.undefined_message());
  if (auto value = element(object, key)) return *value;
  if (key.is_string()) return attribute(object, key.as_text());
  return Value::undefined(fmt::format("{} has no element {}", described(object), to_repr(*this, key)));
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  const Runtime::Level level(runtime_);
  if (callee.is_undefined()) runtime_.fail(callee.undefined_message());
  if (!callee.is(Value::Kind::kObject) || !callee.as_object().is_callable())
    runtime_.fail(fmt::format("'{}' object is not callable", callee.type_name()));
  return callee.as_object().call(*this, arguments);
}

Value Evaluator::call_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Runtime::Level level(runtime_);
  const Filter filter = find_filter(name);
  if (filter == nullptr) runtime_.fail(fmt::format("no filter named '{}'", name));
  return filter(*this, input, arguments);
}

bool Evaluator::call_test(std::string_view name, const Value& input, const Arguments& arguments) {
  const Test test = find_test(name);
  if (test == nullptr) runtime_.fail(fmt::format("no test named '{}'", name));
  return test(*this, input, arguments);
}

}  // namespace megalith::tokenizer::jinja
