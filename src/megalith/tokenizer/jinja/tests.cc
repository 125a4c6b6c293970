// Tests: the names that may follow "is", by jinja2's tests.py. "x is defined" is their main use, so an undefined value
// is accepted wherever jinja2 accepts one.
#include <algorithm>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/text/python_text.h"

namespace megalith::tokenizer::jinja {

namespace {

using Kind = Value::Kind;

struct NamedTest {
  std::string_view name;
  Test call;
};

// Tests of the kind alone. bool and int are told apart here, unlike in Python's isinstance: jinja2's "integer" excludes
// True.
template <Kind kind>
bool is_kind(Evaluator&, const Value& value, const Arguments&) {
  return value.is(kind);
}
template <bool wanted>
bool is_truth(Evaluator&, const Value& value, const Arguments&) {
  return value.is(Kind::kBool) && value.as_bool() == wanted;
}
// "is in", "is eq", "is lt" and the other names of operators, for selectattr("role", "eq", "user").
template <ComparisonOperator op>
bool is_compared(Evaluator& e, const Value& value, const Arguments& arguments) {
  const Bound bound(e.runtime(), "the test", arguments, {"other"}, 1);
  return compare(e, op, value, bound.at(0));
}

bool is_defined(Evaluator&, const Value& value, const Arguments&) { return !value.is_undefined(); }
bool is_number(Evaluator&, const Value& value, const Arguments&) { return value.is_number(); }
// jinja2 asks for len() and [], so texts and dictionaries are sequences, too.
bool is_sequence(Evaluator&, const Value& value, const Arguments&) {
  const bool is_row = value.is(Kind::kSequence) && value.as_sequence().has_elements();
  return is_row || value.is_string() || value.is(Kind::kDict) || value.is_undefined();
}
// Anything that Evaluator::iterate accepts.
bool is_iterable(Evaluator&, const Value& value, const Arguments&) {
  return value.is(Kind::kSequence) || value.is_string() || value.is(Kind::kDict) || value.is_undefined();
}
bool is_callable(Evaluator&, const Value& value, const Arguments&) {
  return value.is(Kind::kObject) && value.as_object().is_callable();
}
// Python's "is". Values have no identity of their own here, so equality of the same kind stands for it: 1 is not True.
bool is_same(Evaluator& e, const Value& value, const Arguments& arguments) {
  const Bound bound(e.runtime(), "sameas", arguments, {"other"}, 1);
  return value.kind() == bound.at(0).kind() && equal(value, bound.at(0));
}

// INT64_MIN % -1 is undefined in C++.
int64_t remainder(Evaluator& e, const Value& value, int64_t divisor) {
  const auto whole = value.whole_number();
  if (!whole) e.runtime().fail("odd, even and divisibleby need a whole number");
  if (divisor == 0) e.runtime().fail("integer modulo by zero");
  return divisor == -1 ? 0 : *whole % divisor;
}
bool is_odd(Evaluator& e, const Value& value, const Arguments&) { return remainder(e, value, 2) != 0; }
bool is_even(Evaluator& e, const Value& value, const Arguments&) { return remainder(e, value, 2) == 0; }
bool is_divisible(Evaluator& e, const Value& value, const Arguments& arguments) {
  const Bound bound(e.runtime(), "divisibleby", arguments, {"num"}, 1);
  return remainder(e, value, bound.integer(0)) == 0;
}

bool is_upper(Evaluator& e, const Value& value, const Arguments&) { return is_upper_text(to_text(e, value)); }
bool is_lower(Evaluator& e, const Value& value, const Arguments&) { return is_lower_text(to_text(e, value)); }
// "x is filter" asks whether a filter has the name x, so that a template can work without it.
bool is_filter(Evaluator&, const Value& value, const Arguments&) {
  return value.is_string() && find_filter(value.as_text()) != nullptr;
}
bool is_test(Evaluator&, const Value& value, const Arguments&) {
  return value.is_string() && find_test(value.as_text()) != nullptr;
}
// Chat templates do not escape HTML, so no text is marked as escaped.
bool never(Evaluator&, const Value&, const Arguments&) { return false; }

// All tests of jinja2 3.1, with their other names.
constexpr NamedTest kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBool>},
    {"true", is_truth<true>},
    {"false", is_truth<false>},
    {"integer", is_kind<Kind::kInt>},
    {"float", is_kind<Kind::kFloat>},
    {"number", is_number},
    {"string", is_kind<Kind::kString>},
    {"mapping", is_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"sameas", is_same},
    {"escaped", never},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"upper", is_upper},
    {"lower", is_lower},
    {"filter", is_filter},
    {"test", is_test},
    {"in", is_compared<ComparisonOperator::kIn>},
    {"eq", is_compared<ComparisonOperator::kEqual>},
    {"equalto", is_compared<ComparisonOperator::kEqual>},
    {"==", is_compared<ComparisonOperator::kEqual>},
    {"ne", is_compared<ComparisonOperator::kNotEqual>},
    {"!=", is_compared<ComparisonOperator::kNotEqual>},
    {"lt", is_compared<ComparisonOperator::kLess>},
    {"lessthan", is_compared<ComparisonOperator::kLess>},
    {"<", is_compared<ComparisonOperator::kLess>},
    {"le", is_compared<ComparisonOperator::kLessEqual>},
    {"<=", is_compared<ComparisonOperator::kLessEqual>},
    {"gt", is_compared<ComparisonOperator::kGreater>},
    {"greaterthan", is_compared<ComparisonOperator::kGreater>},
    {">", is_compared<ComparisonOperator::kGreater>},
    {"ge", is_compared<ComparisonOperator::kGreaterEqual>},
    {">=", is_compared<ComparisonOperator::kGreaterEqual>},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &NamedTest::name);
  return found == std::end(kTests) ? nullptr : found->call;
}

}  // namespace megalith::tokenizer::jinja
