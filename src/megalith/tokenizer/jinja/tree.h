// A parsed template: statements and expressions, like jinja2's nodes. Built by the parser, never changed afterwards.
//
//   {% if a %}{{ b|trim }}{% endif %}   ->   IfStatement{{NameExpression a, OutputStatement{FilterExpression trim(b)}}}
//
// Nodes are plain structs in a variant, so the evaluator needs no virtual functions and the compiler checks that it
// handles all of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "megalith/tokenizer/jinja/value.h"

namespace megalith::tokenizer::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;
struct Statement;
using Body = std::vector<Statement>;

// A variable: an index into Tree::names.
using NameId = int;

// --------------------------------------------------------------------------------------------------------- expressions

// Nodes of expressions; the comments show their source.
struct Literal {
  Value value;
};
// x: a variable
// Looked up in the frames from the innermost outward; undefined if no frame has it.
struct NameExpression {
  NameId name;
};
// [a, b] or (a, b)
struct ListExpression {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
// {a: b}
// Keys and values are evaluated in the order of the source; a later key replaces an equal earlier one.
struct DictExpression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
// not a, -a, +a
enum class UnaryOperator { kNot, kMinus, kPlus };
struct UnaryExpression {
  UnaryOperator op;
  ExpressionPtr operand;
};
// a and b, a or b, a + b, …
enum class BinaryOperator { kAnd, kOr, kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
// `and` and `or` evaluate `right` only if it decides.
struct BinaryExpression {
  BinaryOperator op;
  ExpressionPtr left, right;
};
// a ~ b ~ c
// Operands are converted to texts, so numbers can be joined without |string.
struct ConcatExpression {
  std::vector<ExpressionPtr> parts;
};
// a == b, a in b, …
enum class ComparisonOperator { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct ComparisonExpression {  // a < b <= c: all of them hold
  ExpressionPtr first;
  // Each operator compares with the operand before it.
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> others;
};
// then if condition else otherwise
struct ConditionalExpression {
  ExpressionPtr condition, then, otherwise;  // `otherwise` is nullptr without an else
};
// object.name
// jinja2's getattr: an attribute or a method, and if there is none a key of that name.
struct AttributeExpression {
  ExpressionPtr object;
  std::string name;
};
// object[key]
// jinja2's getitem: an element or a key, and if there is none an attribute of that name.
struct SubscriptExpression {
  ExpressionPtr object, key;
};
// object[start:stop:step]
struct SliceExpression {
  ExpressionPtr object;
  ExpressionPtr start, stop, step;  // nullptr if omitted
};
// (a, b=c, *d, **e)
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *args and **kwargs; nullptr for none
};
// callee(arguments)
struct CallExpression {
  ExpressionPtr callee;
  CallArguments arguments;
};
// input | name(arguments)
// Filters are looked up by name when they run.
struct FilterExpression {
  ExpressionPtr input;  // nullptr: the text of a filter block
  std::string name;
  CallArguments arguments;
};
// input is name(arguments)
struct TestExpression {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};

// Any expression, with its line for messages.
struct Expression {
  // Line of the first token, from 1.
  int line = 1;
  std::variant<Literal, NameExpression, ListExpression, DictExpression, UnaryExpression, BinaryExpression,
               ConcatExpression, ComparisonExpression, ConditionalExpression, AttributeExpression, SubscriptExpression,
               SliceExpression, CallExpression, FilterExpression, TestExpression>
      node;
};

// ---------------------------------------------------------------------------------------------------------- statements

// The target of an assignment: a name, an attribute of a namespace, or a tuple of these.
struct Target {
  int line = 1;
  NameId name = -1;
  std::string attribute;      // attribute of the namespace `name`; empty for the name itself
  std::vector<Target> items;  // targets of a tuple; then name is -1
};

// Parameters of a macro or of a call block.
struct Signature {
  // One parameter: its name as written, for named arguments, and as a variable.
  struct Parameter {
    std::string text;
    NameId name;
    ExpressionPtr otherwise;  // default value; nullptr for none
  };
  // In order; those with a default come last.
  std::vector<Parameter> parameters;
  // Names that a body may use without declaring them.
  NameId varargs = -1, kwargs = -1, caller = -1;  // ids of these names if the body uses them
};

// Text outside tags.
struct TextStatement {
  std::string text;
};
// {{ value }}
struct OutputStatement {
  ExpressionPtr value;
};
// {% if … %} … {% elif … %} … {% else %} … {% endif %}
struct IfStatement {
  // if and elif: condition and body; the first that is true runs.
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  // The else branch; empty for none.
  Body otherwise;
};
// {% for target in iterable if condition recursive %} … {% else %} … {% endfor %}
struct ForStatement {
  Target target;
  ExpressionPtr iterable, condition;  // `condition` is nullptr when there is none
  // The variable `loop`.
  NameId loop;
  // Whether the body may call loop(…).
  bool recursive = false;
  // `otherwise` runs if there is nothing to iterate over.
  Body body, otherwise;
};
// {% set target = value %}
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
// {% set target | filter %} … {% endset %}
// The text of the body, filtered, becomes the value.
struct SetBlockStatement {
  Target target;
  ExpressionPtr filter;  // nullptr for none
  Body body;
};
// {% macro name(signature) %} … {% endmacro %}
// Defines a macro in the current frame; its body runs at each call.
struct MacroStatement {
  std::string text;  // its name
  NameId name;
  Signature signature;
  Body body;
};
// {% call(signature) f(…) %} … {% endcall %}
struct CallStatement {
  ExpressionPtr call;  // a CallExpression, or nullptr for {% generation %}
  Signature signature;
  Body body;
};
// {% filter name %} … {% endfilter %}
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
// {% with a = b %} … {% endwith %}
// The body runs in a frame of its own.
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
// {% break %} and {% continue %}
struct BreakStatement {};
// Inside loops only, which the parser has checked.
struct ContinueStatement {};

// Any statement, with its line for messages.
struct Statement {
  int line = 1;
  std::variant<TextStatement, OutputStatement, IfStatement, ForStatement, SetStatement, SetBlockStatement,
               MacroStatement, CallStatement, FilterStatement, WithStatement, BreakStatement, ContinueStatement>
      node;
};

// A whole template.
struct Tree {
  // Texts of all variables by id.
  std::vector<std::string> names;
  Body body;
  // Whether it has a {% generation %} block.
  bool marks_generation = false;
};

}  // namespace megalith::tokenizer::jinja
