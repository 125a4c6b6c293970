// A parsed template: statements and expressions, like jinja2's nodes. Built by the parser, never changed afterwards.
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

struct Literal {
  Value value;
};
struct NameExpression {
  NameId name;
};
struct ListExpression {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictExpression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
enum class UnaryOperator { kNot, kMinus, kPlus };
struct UnaryExpression {
  UnaryOperator op;
  ExpressionPtr operand;
};
enum class BinaryOperator { kAnd, kOr, kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
struct BinaryExpression {
  BinaryOperator op;
  ExpressionPtr left, right;
};
// a ~ b ~ c
struct ConcatExpression {
  std::vector<ExpressionPtr> parts;
};
enum class ComparisonOperator { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct ComparisonExpression {  // a < b <= c: all of them hold
  ExpressionPtr first;
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> others;
};
struct ConditionalExpression {
  ExpressionPtr condition, then, otherwise;  // `otherwise` is nullptr without an else
};
struct AttributeExpression {
  ExpressionPtr object;
  std::string name;
};
struct SubscriptExpression {
  ExpressionPtr object, key;
};
struct SliceExpression {
  ExpressionPtr object;
  ExpressionPtr start, stop, step;  // nullptr if omitted
};
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *args and **kwargs; nullptr for none
};
struct CallExpression {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterExpression {
  ExpressionPtr input;  // nullptr: the text of a filter block
  std::string name;
  CallArguments arguments;
};
struct TestExpression {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};

// Any expression, with its line for messages.
struct Expression {
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
  std::string attribute;      // of the namespace `name`; empty for the name itself
  std::vector<Target> items;  // of a tuple; then name is -1
};

// Parameters of a macro or of a call block.
struct Signature {
  struct Parameter {
    std::string text;
    NameId name;
    ExpressionPtr otherwise;  // default value; nullptr for none
  };
  std::vector<Parameter> parameters;
  NameId varargs = -1, kwargs = -1, caller = -1;  // ids of these names if the body uses them
};

struct TextStatement {
  std::string text;
};
struct OutputStatement {
  ExpressionPtr value;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct ForStatement {
  Target target;
  ExpressionPtr iterable, condition;  // `condition` is nullptr when there is none
  NameId loop;
  bool recursive = false;
  Body body, otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  ExpressionPtr filter;  // nullptr for none
  Body body;
};
struct MacroStatement {
  std::string text;  // its name
  NameId name;
  Signature signature;
  Body body;
};
struct CallStatement {
  ExpressionPtr call;  // a CallExpression, or nullptr for {% generation %}
  Signature signature;
  Body body;
};
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
struct BreakStatement {};
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
  std::vector<std::string> names;
  Body body;
  bool marks_generation = false;
};

}  // namespace megalith::tokenizer::jinja
