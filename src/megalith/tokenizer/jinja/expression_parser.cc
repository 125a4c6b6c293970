// Recursive descent with one function per level of precedence, lowest first, in the order of jinja2's parser:
//
//   conditional ─ or ─ and ─ not ─ comparison ─ + - ─ ~ ─ * / // % ─ ** ─ unary ─ postfix, filters, tests
//
// Left-associative chains make the tree deeper with each operator, so they call Level::deepen in their loops.
#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/tokenizer/jinja/parser.h"

namespace megalith::tokenizer::jinja {

namespace {

// Allocates a node with the line at which it starts, for messages.
template <typename Node>
ExpressionPtr make(int line, Node node) {
  return std::make_unique<const Expression>(Expression{line, std::move(node)});
}

ExpressionPtr binary(BinaryOperator op, ExpressionPtr left, ExpressionPtr right) {
  const int line = left->line;
  return make(line, BinaryExpression{op, std::move(left), std::move(right)});
}

}  // namespace

// a if c else b; the else may be missing. Right-associative by the recursion after "else".
ExpressionPtr ExpressionParser::expression(bool conditional) {
  TokenReader::Level level(reader_);
  if (!conditional) return either();
  const int line = reader_.current().line;
  ExpressionPtr then = either();
  while (reader_.skip_name("if")) {
    level.deepen();
    ExpressionPtr condition = either();
    ExpressionPtr otherwise = reader_.skip_name("else") ? expression() : nullptr;
    then = make(line, ConditionalExpression{std::move(condition), std::move(then), std::move(otherwise)});
  }
  return then;
}

// a or b or c: a left-associative chain, as the levels below.
ExpressionPtr ExpressionParser::either() {
  TokenReader::Level level(reader_);
  ExpressionPtr left = both();
  while (reader_.skip_name("or")) {
    level.deepen();
    left = binary(BinaryOperator::kOr, std::move(left), both());
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  TokenReader::Level level(reader_);
  ExpressionPtr left = negation();
  while (reader_.skip_name("and")) {
    level.deepen();
    left = binary(BinaryOperator::kAnd, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  const TokenReader::Level level(reader_);
  const int line = reader_.current().line;
  if (reader_.skip_name("not")) return make(line, UnaryExpression{UnaryOperator::kNot, negation()});
  return comparison();
}

// a < b < c is one node, which evaluates b once.
ExpressionPtr ExpressionParser::comparison() {
  constexpr std::pair<std::string_view, ComparisonOperator> kSigns[] = {
      {"==", ComparisonOperator::kEqual},  {"!=", ComparisonOperator::kNotEqual},
      {"<", ComparisonOperator::kLess},    {"<=", ComparisonOperator::kLessEqual},
      {">", ComparisonOperator::kGreater}, {">=", ComparisonOperator::kGreaterEqual}};
  const int line = reader_.current().line;
  ComparisonExpression node{sum(), {}};
  for (;;) {
    const auto sign =
        std::ranges::find_if(kSigns, [&](const auto& s) { return reader_.current().is_operator(s.first); });
    if (sign != std::end(kSigns)) {
      reader_.next();
      node.others.emplace_back(sign->second, sum());
    } else if (reader_.skip_name("in")) {
      node.others.emplace_back(ComparisonOperator::kIn, sum());
      // The only place that needs a second token of lookahead: "a not in b" against "a" followed by something else.
    } else if (reader_.current().is_name("not") && reader_.following().is_name("in")) {
      reader_.next();
      reader_.next();
      node.others.emplace_back(ComparisonOperator::kNotIn, sum());
    } else {
      break;
    }
  }
  if (node.others.empty()) return std::move(node.first);
  return make(line, std::move(node));
}

ExpressionPtr ExpressionParser::sum() {
  TokenReader::Level level(reader_);
  ExpressionPtr left = concat();
  for (;;) {
    level.deepen();
    if (reader_.skip_operator("+"))
      left = binary(BinaryOperator::kAdd, std::move(left), concat());
    else if (reader_.skip_operator("-"))
      left = binary(BinaryOperator::kSubtract, std::move(left), concat());
    else
      return left;
  }
}

// A chain of ~ is one node, so that its text is built once instead of once per operator.
ExpressionPtr ExpressionParser::concat() {
  const int line = reader_.current().line;
  ConcatExpression node;
  node.parts.push_back(product());
  while (reader_.skip_operator("~")) node.parts.push_back(product());
  if (node.parts.size() == 1) return std::move(node.parts[0]);
  return make(line, std::move(node));
}

ExpressionPtr ExpressionParser::product() {
  TokenReader::Level level(reader_);
  ExpressionPtr left = power();
  for (;;) {
    level.deepen();
    if (reader_.skip_operator("*"))
      left = binary(BinaryOperator::kMultiply, std::move(left), power());
    else if (reader_.skip_operator("/"))
      left = binary(BinaryOperator::kDivide, std::move(left), power());
    else if (reader_.skip_operator("//"))
      left = binary(BinaryOperator::kFloorDivide, std::move(left), power());
    else if (reader_.skip_operator("%"))
      left = binary(BinaryOperator::kModulo, std::move(left), power());
    else
      return left;
  }
}

// jinja2's ** is left-associative, unlike Python's: 2**3**2 is 64.
ExpressionPtr ExpressionParser::power() {
  TokenReader::Level level(reader_);
  ExpressionPtr left = unary();
  while (reader_.skip_operator("**")) {
    level.deepen();
    left = binary(BinaryOperator::kPower, std::move(left), unary());
  }
  return left;
}

// A sign binds tighter than filters: -1|abs is (-1)|abs.
ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const TokenReader::Level level(reader_);
  const int line = reader_.current().line;
  ExpressionPtr node;
  if (reader_.skip_operator("-"))
    node = make(line, UnaryExpression{UnaryOperator::kMinus, unary(false)});
  else if (reader_.skip_operator("+"))
    node = make(line, UnaryExpression{UnaryOperator::kPlus, unary(false)});
  else
    node = primary();
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

// Adjacent string literals are joined, as in Python.
ExpressionPtr ExpressionParser::primary() {
  const Token& token = reader_.current();
  const int line = token.line;
  switch (token.kind) {
    case Token::Kind::kName:
      return name_or_constant();
    case Token::Kind::kString: {
      std::string text;
      while (reader_.current().kind == Token::Kind::kString) text += reader_.next().text;
      return make(line, Literal{Value::text(std::move(text))});
    }
    case Token::Kind::kInteger:
      return make(line, Literal{Value::integer(reader_.next().integer)});
    case Token::Kind::kFloat:
      return make(line, Literal{Value::real(reader_.next().real)});
    default:
      break;
  }
  if (token.is_operator("(")) return parenthesized();
  if (token.is_operator("[")) return list_literal();
  if (token.is_operator("{")) return dict_literal();
  reader_.fail_expected("an expression");
}

// Constants have two spellings each; they are not variables and cannot be assigned.
ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = reader_.next();
  if (token.text == "true" || token.text == "True") return make(token.line, Literal{Value::boolean(true)});
  if (token.text == "false" || token.text == "False") return make(token.line, Literal{Value::boolean(false)});
  if (token.text == "none" || token.text == "None") return make(token.line, Literal{Value()});
  return make(token.line, NameExpression{reader_.intern(token.text)});
}

// (a) is a itself, (a,) and () are tuples.
ExpressionPtr ExpressionParser::parenthesized() {
  reader_.expect_operator("(");
  const int line = reader_.current().line;
  ExpressionPtr node = reader_.current().is_operator(")") ? make(line, ListExpression{{}, true}) : tuple();
  reader_.expect_operator(")");
  return node;
}

// [a, b,]: one comma may follow the last item.
ExpressionPtr ExpressionParser::list_literal() {
  const int line = reader_.next().line;
  ListExpression node;
  while (!reader_.current().is_operator("]")) {
    if (!node.items.empty()) reader_.expect_operator(",");
    if (reader_.current().is_operator("]")) break;
    node.items.push_back(expression());
  }
  reader_.expect_operator("]");
  return make(line, std::move(node));
}

// {a: b, c: d,}: keys are expressions, so {x: 1} uses the variable x.
ExpressionPtr ExpressionParser::dict_literal() {
  const int line = reader_.next().line;
  DictExpression node;
  while (!reader_.current().is_operator("}")) {
    if (!node.entries.empty()) reader_.expect_operator(",");
    if (reader_.current().is_operator("}")) break;
    ExpressionPtr key = expression();
    reader_.expect_operator(":");
    node.entries.emplace_back(std::move(key), expression());
  }
  reader_.expect_operator("}");
  return make(line, std::move(node));
}

// The tokens after which a trailing comma has no further item: "{% for a, in b %}", "(a,)", "{{ a, }}".
bool ExpressionParser::at_tuple_end(std::initializer_list<std::string_view> ends) const {
  const Token& token = reader_.current();
  return token.kind == Token::Kind::kVariableEnd || token.kind == Token::Kind::kBlockEnd || token.is_operator(")") ||
         std::ranges::any_of(ends, [&](std::string_view end) { return token.is_name(end); });
}

// Without a comma it is the expression itself, not a tuple of one.
ExpressionPtr ExpressionParser::tuple(bool conditional, std::initializer_list<std::string_view> ends) {
  const int line = reader_.current().line;
  ListExpression node{{}, true};
  bool has_comma = false;
  for (;;) {
    if (!node.items.empty()) {
      if (!reader_.skip_operator(",")) break;
      has_comma = true;
    }
    if (at_tuple_end(ends)) break;
    node.items.push_back(expression(conditional));
  }
  if (node.items.empty()) reader_.fail_expected("an expression");
  if (!has_comma) return std::move(node.items[0]);
  return make(line, std::move(node));
}

// Attributes, subscripts and calls: a.b[c](d).
ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
  TokenReader::Level level(reader_);
  for (;;) {
    level.deepen();
    if (reader_.current().is_operator(".") || reader_.current().is_operator("["))
      node = subscript(std::move(node));
    else if (reader_.current().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

// In "x|trim|length > 3", filters and tests bind tighter than all binary operators. The result of a filter may be
// called.
ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr node) {
  TokenReader::Level level(reader_);
  for (;;) {
    level.deepen();
    if (reader_.current().is_operator("|"))
      node = filters(std::move(node));
    else if (reader_.current().is_name("is"))
      node = test(std::move(node));
    else if (reader_.current().is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

// a.b, a.0 (which is a[0]) or a[…].
ExpressionPtr ExpressionParser::subscript(ExpressionPtr node) {
  const int line = reader_.current().line;
  if (reader_.skip_operator(".")) {
    const Token token = reader_.next();
    if (token.kind == Token::Kind::kName) return make(line, AttributeExpression{std::move(node), token.text});
    if (token.kind == Token::Kind::kInteger)
      return make(line, SubscriptExpression{std::move(node), make(line, Literal{Value::integer(token.integer)})});
    reader_.fail(fmt::format("expected a name or a number after '.', got {}", describe(token)), token.line);
  }
  reader_.expect_operator("[");
  ExpressionPtr result = subscript_key(std::move(node), line);
  reader_.expect_operator("]");
  return result;
}

// Either one key or up to three bounds of a slice.
ExpressionPtr ExpressionParser::subscript_key(ExpressionPtr node, int line) {
  const auto at_bound = [&] { return reader_.current().is_operator(":") || reader_.current().is_operator("]"); };
  ExpressionPtr first = at_bound() ? nullptr : expression();
  if (!reader_.skip_operator(":")) {
    if (!first) reader_.fail_expected("an expression");
    return make(line, SubscriptExpression{std::move(node), std::move(first)});
  }
  // Every bound may be missing: [:], [1:], [:-1], [::2].
  ExpressionPtr stop = at_bound() ? nullptr : expression();
  ExpressionPtr step = reader_.skip_operator(":") && !at_bound() ? expression() : nullptr;
  return make(line, SliceExpression{std::move(node), std::move(first), std::move(stop), std::move(step)});
}

// Names of filters and tests may contain points in jinja2.
std::string ExpressionParser::dotted_name() {
  std::string name = reader_.identifier();
  while (reader_.skip_operator(".")) name += "." + reader_.identifier();
  return name;
}

// A chain nests outward: "| a | b" becomes b(a(input)). {% filter a | b %} starts without a "|" and without an input.
ExpressionPtr ExpressionParser::filters(ExpressionPtr node, bool inline_start) {
  TokenReader::Level level(reader_);
  while (inline_start || reader_.current().is_operator("|")) {
    level.deepen();
    if (!inline_start) reader_.next();
    inline_start = false;
    const int line = reader_.current().line;
    FilterExpression filter{std::move(node), dotted_name(), {}};
    if (reader_.current().is_operator("(")) filter.arguments = arguments();
    node = make(line, std::move(filter));
  }
  return node;
}

// x is divisibleby 3, x is divisibleby(3), x is not none. Without parentheses one argument may follow, unless the next
// word continues the expression around the test: in "x is defined and y", `and` is not an argument.
ExpressionPtr ExpressionParser::test(ExpressionPtr node) {
  constexpr const char* kEnds[] = {"else", "or", "and", "if", "not", "in"};  // never an argument of a test
  const int line = reader_.next().line;                                      // "is"
  const bool negated = reader_.skip_name("not");
  TestExpression result{std::move(node), dotted_name(), {}};
  const Token& token = reader_.current();
  // A test may have one argument without parentheses if the next token can only begin an expression.
  const bool starts_argument = token.kind == Token::Kind::kName || token.kind == Token::Kind::kString ||
                               token.kind == Token::Kind::kInteger || token.kind == Token::Kind::kFloat ||
                               token.is_operator("[") || token.is_operator("{");
  if (token.is_operator("(")) {
    result.arguments = arguments();
  } else if (starts_argument && std::ranges::none_of(kEnds, [&](const char* end) { return token.is_name(end); })) {
    if (token.is_name("is")) reader_.fail("tests cannot be chained with 'is'");
    result.arguments.positional.push_back(postfix(primary()));
  }
  // "is not" negates the result of the test; "not" is not part of its name.
  ExpressionPtr made = make(line, std::move(result));
  return negated ? make(line, UnaryExpression{UnaryOperator::kNot, std::move(made)}) : std::move(made);
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const int line = reader_.current().line;
  return make(line, CallExpression{std::move(callee), arguments()});
}

// Positional, named, *args and **kwargs, in Python's order.
CallArguments ExpressionParser::arguments() {
  const TokenReader::Level level(reader_);
  CallArguments result;
  reader_.expect_operator("(");
  for (bool first = true; !reader_.current().is_operator(")"); first = false) {
    if (!first) {
      reader_.expect_operator(",");
      if (reader_.current().is_operator(")")) break;
    }
    const int line = reader_.current().line;
    if (reader_.skip_operator("**")) {
      if (result.more_named) reader_.fail("invalid syntax for function call: a second **", line);
      result.more_named = expression();
    } else if (reader_.skip_operator("*")) {
      if (result.more_positional || result.more_named)
        reader_.fail("invalid syntax for function call: * may occur once, before **", line);
      result.more_positional = expression();
    } else if (reader_.current().kind == Token::Kind::kName && reader_.following().is_operator("=")) {
      if (result.more_named) reader_.fail("invalid syntax for function call: an argument after **", line);
      std::string name = reader_.identifier();
      reader_.next();
      result.named.emplace_back(std::move(name), expression());
    } else {
      if (!result.named.empty() || result.more_positional || result.more_named)
        reader_.fail("invalid syntax for function call: a positional argument after a named one", line);
      result.positional.push_back(expression());
    }
  }
  reader_.expect_operator(")");
  return result;
}

}  // namespace megalith::tokenizer::jinja
