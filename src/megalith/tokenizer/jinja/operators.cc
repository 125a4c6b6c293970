// Arithmetic, comparison, slices and lengths with Python's rules, except that whole numbers have 64 bits: overflow is
// an error.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/text/python_text.h"

namespace megalith::tokenizer::jinja {

namespace {

using Kind = Value::Kind;

// In the order of BinaryOperator, with the words of Python's messages.
constexpr std::string_view kSigns[] = {"and", "or", "+", "-", "*", "/", "//", "%", "** or pow()"};

// Fails with Python's TypeError, or with the message of an undefined operand, which is the real mistake then.
[[noreturn]] void unsupported(const Runtime& runtime, std::string_view sign, const Value& a, const Value& b) {
  for (const Value* operand : {&a, &b})
    if (operand->is_undefined()) runtime.fail(operand->undefined_message());
  const bool joins_text = sign == "+" && a.is_string();
  runtime.fail(joins_text ? fmt::format("can only concatenate str (not \"{}\") to str; use ~ or |string", b.type_name())
                          : fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, a.type_name(),
                                        b.type_name()));
}

[[noreturn]] void overflow(const Runtime& runtime) { runtime.fail("a whole number does not fit into 64 bits"); }

// The loop ends by overflow after at most 63 steps, since |base| >= 2.
// A negative exponent gives a float, as in Python.
Value whole_power(Evaluator& evaluator, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) evaluator.runtime().fail("0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1 || base == -1)
    return Value::integer(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i)
    if (__builtin_mul_overflow(result, base, &result)) overflow(evaluator.runtime());
  return Value::integer(result);
}

Value whole_arithmetic(Evaluator& evaluator, BinaryOperator op, int64_t a, int64_t b) {
  const Runtime& runtime = evaluator.runtime();
  int64_t result = 0;
  switch (op) {
    // Python's numbers grow without bound; no chat template needs more than 64 bits, so overflow is reported instead.
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) overflow(runtime);
      return Value::integer(result);
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) overflow(runtime);
      return Value::integer(result);
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) overflow(runtime);
      return Value::integer(result);
    case BinaryOperator::kPower:
      return whole_power(evaluator, a, b);
    default:
      break;
  }
  if (b == 0) runtime.fail("division by zero");
  if (op == BinaryOperator::kDivide) return Value::real(static_cast<double>(a) / static_cast<double>(b));
  // INT64_MIN / -1 overflows, and INT64_MIN % -1 is undefined in C++.
  if (b == -1) {
    if (op == BinaryOperator::kModulo) return Value::integer(0);
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) overflow(runtime);
    return Value::integer(result);
  }
  // Python rounds down, C++ toward zero; they differ when the signs differ.
  const int64_t rest = a % b;
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  if (op == BinaryOperator::kModulo) return Value::integer(rounds_down ? rest + b : rest);
  return Value::integer(a / b - (rounds_down ? 1 : 0));
}

// The remainder takes the sign of the divisor, as in Python.
Value float_arithmetic(Evaluator& evaluator, BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::real(a + b);
    case BinaryOperator::kSubtract:
      return Value::real(a - b);
    case BinaryOperator::kMultiply:
      return Value::real(a * b);
    case BinaryOperator::kPower:
      if (a == 0 && b < 0) evaluator.runtime().fail("0.0 cannot be raised to a negative power");
      return Value::real(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) evaluator.runtime().fail("float division by zero");
  if (op == BinaryOperator::kDivide) return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value::real(op == BinaryOperator::kModulo ? rest : std::floor((a - rest) / b + 0.5));
}

// Returns a text or a list repeated `count` times.
// The cap on `times` keeps the product below from wrapping around; the charge fails for anything that large.
Value repeated(Evaluator& evaluator, const Value& value, int64_t count) {
  Runtime& runtime = evaluator.runtime();
  const auto times = static_cast<size_t>(std::clamp<int64_t>(count, 0, std::numeric_limits<int32_t>::max()));
  if (value.is_string()) {
    const std::string& text = value.as_text();
    if (text.empty()) return value;
    runtime.pay_bytes(text.size() * times);  // charged before it is built
    std::string result;
    for (size_t i = 0; i < times; ++i) result += text;
    return runtime.text(std::move(result));
  }
  const Sequence& sequence = value.as_sequence();
  if (sequence.items.empty()) return value;
  runtime.pay_bytes(sequence.items.size() * times * sizeof(Value));
  std::vector<Value> items;
  for (size_t i = 0; i < times; ++i) items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return runtime.sequence(sequence.kind, std::move(items));
}

// Ranges, views and generators are neither, and have no arithmetic.
bool is_list_or_tuple(const Value& value) {
  return value.is(Kind::kSequence) &&
         (value.as_sequence().kind == Sequence::Kind::kList || value.as_sequence().kind == Sequence::Kind::kTuple);
}

// a + b of two lists or two tuples; a mix of both is an error before this.
Value joined(Evaluator& evaluator, const Value& a, const Value& b) {
  std::vector<Value> items = a.as_sequence().items;
  items.insert(items.end(), b.as_sequence().items.begin(), b.as_sequence().items.end());
  return evaluator.runtime().sequence(a.as_sequence().kind, std::move(items));
}

// Searching a list is charged per element.
bool contains(Evaluator& evaluator, const Value& container, const Value& item) {
  Runtime& runtime = evaluator.runtime();
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        if (item.is_undefined()) runtime.fail(item.undefined_message());
        runtime.fail(fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
      }
      return container.as_text().find(item.as_text()) != std::string::npos;
    case Kind::kSequence:
      runtime.step(container.as_sequence().items.size());
      return std::ranges::any_of(container.as_sequence().items, [&](const Value& v) { return equal(v, item); });
    case Kind::kDict:
      return container.as_dict().find(item) != nullptr;
    case Kind::kUndefined:
      return false;
    default:
      runtime.fail(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  }
}

}  // namespace

// Whole numbers stay whole except for /; texts and lists can be added and repeated; % formats a text.
Value arithmetic(Evaluator& evaluator, BinaryOperator op, const Value& a, const Value& b) {
  const auto x = a.whole_number(), y = b.whole_number();
  if (x && y) return whole_arithmetic(evaluator, op, *x, *y);
  if (const auto p = a.number(), q = b.number(); p && q) return float_arithmetic(evaluator, op, *p, *q);
  if (op == BinaryOperator::kAdd && a.is_string() && b.is_string()) {
    evaluator.runtime().pay_bytes(a.as_text().size());
    return evaluator.runtime().text(a.as_text() + b.as_text());
  }
  if (op == BinaryOperator::kAdd && is_list_or_tuple(a) && is_list_or_tuple(b) &&
      a.as_sequence().kind == b.as_sequence().kind)
    return joined(evaluator, a, b);
  if (op == BinaryOperator::kMultiply) {
    if (y && (a.is_string() || is_list_or_tuple(a))) return repeated(evaluator, a, *y);
    if (x && (b.is_string() || is_list_or_tuple(b))) return repeated(evaluator, b, *x);
  }
  // "%s: %s" % (a, b).
  if (op == BinaryOperator::kModulo && a.is_string())
    return evaluator.runtime().text(printf_text(evaluator, a.as_text(), b));
  unsupported(evaluator.runtime(), kSigns[static_cast<size_t>(op)], a, b);
}

// -True is -1, as in Python, where bool is a number.
Value negated(Evaluator& evaluator, const Value& value, UnaryOperator op) {
  const Runtime& runtime = evaluator.runtime();
  if (value.is_undefined()) runtime.fail(value.undefined_message());
  if (const auto whole = value.whole_number()) {
    int64_t result = *whole;
    if (op == UnaryOperator::kMinus && __builtin_sub_overflow(int64_t{0}, *whole, &result)) overflow(runtime);
    return Value::integer(result);
  }
  if (value.is(Kind::kFloat)) return Value::real(op == UnaryOperator::kMinus ? -value.as_float() : value.as_float());
  runtime.fail(
      fmt::format("bad operand type for unary {}: '{}'", op == UnaryOperator::kMinus ? "-" : "+", value.type_name()));
}

// Sequences compare by their first difference.
bool less(Evaluator& evaluator, const Value& a, const Value& b) {
  const Runtime::Level level(evaluator.runtime());
  if (const auto x = a.whole_number(), y = b.whole_number(); x && y) return *x < *y;
  if (const auto x = a.number(), y = b.number(); x && y) return *x < *y;
  if (a.is_string() && b.is_string()) return a.as_text() < b.as_text();
  if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.as_sequence().kind == b.as_sequence().kind) {
    const auto& x = a.as_sequence().items;
    const auto& y = b.as_sequence().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i])) return less(evaluator, x[i], y[i]);
    return x.size() < y.size();
  }
  for (const Value* operand : {&a, &b})
    if (operand->is_undefined()) evaluator.runtime().fail(operand->undefined_message());
  evaluator.runtime().fail(
      fmt::format("'<' is not supported between instances of '{}' and '{}'", a.type_name(), b.type_name()));
}

// All orders follow from == and <. For NaN that makes a >= b false, as it must be.
bool compare(Evaluator& evaluator, ComparisonOperator op, const Value& a, const Value& b) {
  switch (op) {
    case ComparisonOperator::kEqual:
      return equal(a, b);
    case ComparisonOperator::kNotEqual:
      return !equal(a, b);
    case ComparisonOperator::kLess:
      return less(evaluator, a, b);
    case ComparisonOperator::kLessEqual:
      return less(evaluator, a, b) || equal(a, b);
    case ComparisonOperator::kGreater:
      return less(evaluator, b, a);
    case ComparisonOperator::kGreaterEqual:
      return less(evaluator, b, a) || equal(a, b);
    case ComparisonOperator::kIn:
      return contains(evaluator, b, a);
    case ComparisonOperator::kNotIn:
      return !contains(evaluator, b, a);
  }
  return false;
}

// Characters of a text, elements or keys; an undefined value has length 0 in jinja2.
size_t length(Evaluator& evaluator, const Value& value) {
  if (value.is_string()) return code_points(value.as_text());
  if (value.is(Kind::kSequence) && value.as_sequence().has_length()) return value.as_sequence().items.size();
  if (value.is(Kind::kDict)) return value.as_dict().entries().size();
  if (value.is_undefined()) return 0;
  evaluator.runtime().fail(fmt::format("object of type '{}' has no len()", value.type_name()));
}

Value slice(Evaluator& evaluator, const Value& value, const Value& start, const Value& stop, const Value& step) {
  Runtime& runtime = evaluator.runtime();
  if (value.is_undefined()) runtime.fail(value.undefined_message());
  const bool is_text = value.is_string();
  if (!is_text && !(value.is(Kind::kSequence) && value.as_sequence().has_elements()))
    runtime.fail(fmt::format("'{}' object cannot be sliced", value.type_name()));
  // A bound that is left out is None.
  const auto number = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    const auto whole = bound.whole_number();
    if (bound.is_undefined()) runtime.fail(bound.undefined_message());
    if (!whole) runtime.fail(fmt::format("slice bounds must be whole numbers, not '{}'", bound.type_name()));
    return *whole;
  };
  const std::vector<size_t> offsets = is_text ? character_offsets(value.as_text()) : std::vector<size_t>();
  const auto size = static_cast<int64_t>(is_text ? offsets.size() - 1 : value.as_sequence().items.size());
  // Bounds far outside are clamped first, so that no sum below overflows.
  const int64_t by = std::clamp<int64_t>(number(step, 1), -size - 1, size + 1);
  if (number(step, 1) == 0) runtime.fail("slice step cannot be zero");
  // CPython's PySlice_AdjustIndices: backward slices run from size - 1 down to -1, exclusive, so that x[::-1] includes
  // the first element.
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto clamped = [&](int64_t bound) {
    return std::clamp(bound < 0 ? std::max(bound, -size - 1) + size : bound, low, high);
  };
  const int64_t begin = start.is_none() ? (by > 0 ? low : high) : clamped(number(start, 0));
  const int64_t end = stop.is_none() ? (by > 0 ? high : low) : clamped(number(stop, 0));
  std::string text;
  std::vector<Value> items;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
    const auto at = static_cast<size_t>(i);
    if (is_text)
      text.append(value.as_text(), offsets[at], offsets[at + 1] - offsets[at]);
    else
      items.push_back(value.as_sequence().items[at]);
  }
  runtime.step(items.size());
  return is_text ? runtime.text(std::move(text)) : runtime.sequence(value.as_sequence().kind, std::move(items));
}

}  // namespace megalith::tokenizer::jinja
