// Statements: recursive descent over blocks. Names of variables are replaced by ids while parsing (intern), so that the
// evaluator compares numbers. A block is parsed as
//   {% tag … %} body {% end %}
// where `body` stops in front of the first tag whose name is in a list of ends, and the block's own function consumes
// that name: {% if %} stops at elif, else and endif. The list of open ends also makes the message about a stray {%
// endfor %}.
#include "megalith/tokenizer/jinja/parser.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr int kMaxDepth = 1000;  // nested steps of the grammar; a parenthesized expression takes about ten

}  // namespace

// -------------------------------------------------------------------------------------------------------------- tokens

Token TokenReader::next() {
  Token token = current();
  if (!at_end()) ++at_;
  return token;
}

bool TokenReader::skip_operator(std::string_view sign) {
  if (!current().is_operator(sign)) return false;
  ++at_;
  return true;
}

bool TokenReader::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  ++at_;
  return true;
}

void TokenReader::expect_operator(std::string_view sign) {
  if (!skip_operator(sign)) fail_expected(fmt::format("'{}'", sign));
}

void TokenReader::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
}

void TokenReader::expect(Token::Kind kind, std::string_view what) {
  if (current().kind != kind) fail_expected(what);
  ++at_;
}

std::string TokenReader::identifier() {
  if (current().kind != Token::Kind::kName) fail_expected("a name");
  return next().text;
}

void TokenReader::fail(std::string_view what, int line) const {
  throw DataError(fmt::format("{}:{}: {}", template_name_, line, what));
}

void TokenReader::fail_expected(std::string_view what) const {
  fail(fmt::format("expected {}, got {}", what, describe(current())));
}

NameId TokenReader::intern(const std::string& name) {
  const auto [place, is_new] = ids_.emplace(name, static_cast<NameId>(names_.size()));
  if (is_new) names_.push_back(name);
  return place->second;
}

void TokenReader::Level::deepen() {
  if (reader_.level_ >= kMaxDepth)
    reader_.fail(fmt::format("expressions or blocks are nested more than {} levels deep", kMaxDepth));
  ++reader_.level_;
  ++count_;
}

// -------------------------------------------------------------------------------------------------- assignment targets

// x, (x, y), or ns.x where `with_namespace` allows it ({% set %}, but not {% for %}).
Target ExpressionParser::single_target(bool with_namespace) {
  const TokenReader::Level level(reader_);
  if (reader_.skip_operator("(")) {
    Target inner = target(with_namespace);
    reader_.expect_operator(")");
    return inner;
  }
  Target result{.line = reader_.current().line};
  const std::string name = reader_.identifier();
  if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None")
    reader_.fail(fmt::format("can't assign to '{}'", name), result.line);
  result.name = reader_.intern(name);
  if (with_namespace && reader_.skip_operator(".")) result.attribute = reader_.identifier();
  return result;
}

// "a, b" is a tuple, and so is "a,"; a single name is itself.
Target ExpressionParser::target(bool with_namespace, std::initializer_list<std::string_view> ends) {
  Target first = single_target(with_namespace);
  if (!reader_.current().is_operator(",")) return first;
  Target result{.line = first.line};
  result.items.push_back(std::move(first));
  while (reader_.skip_operator(",")) {
    if (at_tuple_end(ends) || reader_.current().is_operator("=")) break;
    result.items.push_back(single_target(with_namespace));
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------- statements

namespace {

using Ends = std::initializer_list<std::string_view>;

// Parses all statements of one template. Expressions are left to ExpressionParser, which reads from the same tokens.
class StatementParser {
 public:
  explicit StatementParser(TokenReader& reader) : reader_(reader), expressions_(reader) {}

  // Parses statements up to a block that starts with one of `ends`, whose name is the next token, or to the end of the
  // template.
  Body statements(Ends ends) {
    const TokenReader::Level level(reader_);
    const int start = reader_.current().line;
    Body body;
    while (!reader_.at_end()) {
      const Token token = reader_.next();
      if (token.kind == Token::Kind::kText) {
        body.push_back({token.line, TextStatement{token.text}});
      } else if (token.kind == Token::Kind::kVariableBegin) {
        body.push_back({token.line, OutputStatement{expressions_.tuple()}});
        reader_.expect(Token::Kind::kVariableEnd, "'}}', the end of the print statement");
      } else {
        if (std::ranges::any_of(ends, [&](std::string_view end) { return reader_.current().is_name(end); }))
          return body;
        body.push_back(block(ends));
        reader_.expect(Token::Kind::kBlockEnd, "'%}', the end of the block");
      }
    }
    if (ends.size() > 0)
      reader_.fail(fmt::format("the template ends inside a block; {{% {} %}} is missing for the one at line {}",
                               fmt::join(ends, " %} or {% "), start));
    return body;
  }

  bool marks_generation() const { return marks_generation_; }

 private:
  // Parses one block, whose name is the current token, up to but without its last "%}".
  Statement block(Ends ends) {
    const Token token = reader_.current();
    if (token.kind != Token::Kind::kName) reader_.fail_expected("the name of a block");
    reader_.next();
    const int line = token.line;
    const std::string& tag = token.text;
    if (tag == "if") return {line, if_block()};
    if (tag == "for") return {line, for_block()};
    if (tag == "set") return set_block(line);
    if (tag == "macro") return {line, macro_block()};
    if (tag == "call") return {line, call_block()};
    if (tag == "generation") return {line, generation_block()};
    if (tag == "filter") return {line, filter_block()};
    if (tag == "with") return {line, with_block()};
    if (tag == "print") return {line, OutputStatement{expressions_.tuple()}};
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) reader_.fail(fmt::format("'{}' is outside a loop", tag), line);
      return tag == "break" ? Statement{line, BreakStatement{}} : Statement{line, ContinueStatement{}};
    }
    refuse(tag, line, ends);
  }

  // Explains an unknown tag: one that needs other files, an end without its beginning, or a spelling mistake.
  [[noreturn]] void refuse(const std::string& tag, int line, Ends ends) const {
    const std::vector<std::string> other_files{"include", "import", "from", "extends", "block", "autoescape"};
    if (std::ranges::find(other_files, tag) != other_files.end())
      reader_.fail(fmt::format("'{}' is not supported in chat templates", tag), line);
    const std::vector<std::string> known{"if",     "for",  "set",   "macro", "call",     "generation",
                                         "filter", "with", "print", "break", "continue", "raw"};
    const auto near = nearest(tag, known, 1);
    std::string message = fmt::format("unknown tag '{}'", tag);
    if (tag.starts_with("end") || tag == "else" || tag == "elif")
      message += ends.size() == 0 ? "; no block is open here"
                                  : fmt::format("; the open block ends with {}", fmt::join(ends, " or "));
    else if (!near.empty())
      message += fmt::format("; did you mean '{}'?", near[0]);
    reader_.fail(message, line);
  }

  // Parses the rest of a block's first tag and its statements, up to the name that ends them.
  Body body(Ends ends) {
    reader_.expect(Token::Kind::kBlockEnd, "'%}', the end of the block's first tag");
    return statements(ends);
  }
  // Like body() for blocks that can end in one way only.
  Body body_to_end(std::string_view end) {
    Body result = body({end});
    reader_.expect_name(end);
    return result;
  }

  IfStatement if_block() {
    IfStatement node;
    // Each round parses one condition and its branch; elif is followed by another condition.
    for (;;) {
      ExpressionPtr condition = expressions_.tuple(false);
      node.branches.emplace_back(std::move(condition), body({"elif", "else", "endif"}));
      const std::string end = reader_.identifier();
      if (end == "elif") continue;
      if (end == "else") node.otherwise = body_to_end("endif");
      return node;
    }
  }

  // "in x if y" must not read "x if y" as a conditional expression, hence tuple(false).
  ForStatement for_block() {
    ForStatement node;
    node.target = expressions_.target(false, {"in"});
    reader_.expect_name("in");
    node.iterable = expressions_.tuple(false, {"recursive"});
    if (reader_.skip_name("if")) node.condition = expressions_.expression();
    node.recursive = reader_.skip_name("recursive");
    // `loop` gets its id here, so the evaluator can set it without a lookup by name.
    node.loop = reader_.intern("loop");
    ++loops_;
    node.body = body({"endfor", "else"});
    --loops_;
    if (reader_.identifier() == "else") node.otherwise = body_to_end("endfor");
    return node;
  }

  Statement set_block(int line) {
    Target target = expressions_.target(true);
    // Without "=" it is the block form, {% set x %} … {% endset %}, which may have filters: {% set x | trim %}.
    if (reader_.skip_operator("=")) return {line, SetStatement{std::move(target), expressions_.tuple()}};
    SetBlockStatement node{std::move(target), expressions_.filters(nullptr), {}};
    node.body = body_to_end("endset");
    return {line, std::move(node)};
  }

  // Parameters as in "(a, b=1)"; an absent list is empty. Defaults are expressions, evaluated at each call.
  Signature signature() {
    Signature result;
    if (!reader_.skip_operator("(")) return result;
    while (!reader_.current().is_operator(")")) {
      if (!result.parameters.empty()) reader_.expect_operator(",");
      const int line = reader_.current().line;
      std::string name = reader_.identifier();
      const NameId id = reader_.intern(name);
      ExpressionPtr otherwise = reader_.skip_operator("=") ? expressions_.expression() : nullptr;
      if (!otherwise && !result.parameters.empty() && result.parameters.back().otherwise)
        reader_.fail("non-default argument follows default argument", line);
      result.parameters.push_back({std::move(name), id, std::move(otherwise)});
    }
    reader_.expect_operator(")");
    return result;
  }

  // Parses a body that is called: break does not reach loops around it, and it may use varargs, kwargs and caller.
  Body callable_body(std::string_view end, Signature& signature) {
    // jinja2 passes varargs, kwargs and caller only to bodies that mention them. Names are interned while the body is
    // parsed, so afterwards a known id means that this body, or one before it, uses the name.
    const int loops = std::exchange(loops_, 0);
    Body result = body_to_end(end);
    loops_ = loops;
    const auto used = [&](const char* name) { return reader_.knows(name) ? reader_.intern(name) : -1; };
    signature.varargs = used("varargs");
    signature.kwargs = used("kwargs");
    signature.caller = used("caller");
    return result;
  }

  MacroStatement macro_block() {
    MacroStatement node;
    node.text = reader_.identifier();
    node.name = reader_.intern(node.text);
    if (!reader_.current().is_operator("(")) reader_.fail_expected("'('");
    node.signature = signature();
    node.body = callable_body("endmacro", node.signature);
    return node;
  }

  CallStatement call_block() {
    CallStatement node;
    node.signature = signature();
    const int line = reader_.current().line;
    node.call = expressions_.expression();
    if (!std::holds_alternative<CallExpression>(node.call->node)) reader_.fail("expected a call", line);
    node.body = callable_body("endcall", node.signature);
    return node;
  }

  // {% generation %} is transformers' extension: it marks the text of an assistant, for masks of the loss. A call block
  // without a call stands for it in the tree.
  CallStatement generation_block() {
    CallStatement node;
    marks_generation_ = true;
    node.body = callable_body("endgeneration", node.signature);
    return node;
  }

  FilterStatement filter_block() {
    ExpressionPtr filter = expressions_.filters(nullptr, true);
    return {std::move(filter), body_to_end("endfilter")};
  }

  // {% with a = 1, b = 2 %}: the values do not see one another.
  WithStatement with_block() {
    WithStatement node;
    while (reader_.current().kind != Token::Kind::kBlockEnd) {
      if (!node.values.empty()) reader_.expect_operator(",");
      Target target = expressions_.target(false);
      reader_.expect_operator("=");
      node.values.emplace_back(std::move(target), expressions_.expression());
    }
    node.body = body_to_end("endwith");
    return node;
  }

  TokenReader& reader_;
  ExpressionParser expressions_;
  // Open loops around the current statement, for break and continue.
  int loops_ = 0;
  bool marks_generation_ = false;
};

}  // namespace

Tree parse_template(std::string_view source, const std::string& name) {
  TokenReader reader(tokenize(source, name), name);
  StatementParser parser(reader);
  Tree tree;
  tree.body = parser.statements({});
  tree.marks_generation = parser.marks_generation();
  tree.names = reader.take_names();
  return tree;
}

}  // namespace megalith::tokenizer::jinja
