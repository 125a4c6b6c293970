// Parses tokens into a tree, by the grammar of jinja2's parser.py. Two classes share one TokenReader: ExpressionParser
// (expression_parser.cc) and the parser of statements (parser.cc), which calls it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/tokenizer/jinja/lexer.h"
#include "megalith/tokenizer/jinja/tree.h"

namespace megalith::tokenizer::jinja {

// Returns the tree of a template. Throws DataError with name, line, what was found and what was expected.
Tree parse_template(std::string_view source, const std::string& name);

// The tokens still to be read, and the names seen so far.
class TokenReader {
 public:
  // `tokens` end with kEnd. `template_name` is for messages and outlives the reader.
  TokenReader(std::vector<Token> tokens, const std::string& template_name)
      : tokens_(std::move(tokens)), template_name_(template_name) {}

  // The next token, and the one after it; kEnd repeats at the end.
  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  // Returns the current token and advances.
  Token next();
  bool at_end() const { return current().kind == Token::Kind::kEnd; }

  // Consume the token if it is the given one, and return whether it was.
  bool skip_operator(std::string_view sign);
  bool skip_name(std::string_view name);
  // Consume the given token or fail; `what` describes it in the message.
  void expect_operator(std::string_view sign);
  void expect_name(std::string_view name);
  void expect(Token::Kind kind, std::string_view what);
  // Consumes a name and returns it; fails for any other token.
  std::string identifier();

  // Throw DataError: "template:line: what", or "expected what, got …".
  [[noreturn]] void fail(std::string_view what) const { fail(what, current().line); }
  [[noreturn]] void fail(std::string_view what, int line) const;
  [[noreturn]] void fail_expected(std::string_view what) const;

  // Returns the id of a variable's name, new or known. take_names() returns the names by id when parsing has finished.
  NameId intern(const std::string& name);
  bool knows(const std::string& name) const { return ids_.contains(name); }
  std::vector<std::string> take_names() { return std::move(names_); }

  // Held by every function that recurses or makes the tree deeper: bounds the depth of the tree, which everything that
  // later walks it relies on.
  class Level {
   public:
    // Counts one level, and with deepen() further ones; the destructor takes all of them back. Fails at the limit.
    explicit Level(TokenReader& reader) : reader_(reader) { deepen(); }
    ~Level() { reader_.level_ -= count_; }
    void deepen();
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    TokenReader& reader_;
    // Levels that this object holds.
    int count_ = 0;
  };

 private:
  // All tokens, and the index of the current one.
  std::vector<Token> tokens_;
  const std::string& template_name_;
  size_t at_ = 0;
  // Nesting so far; see Level.
  int level_ = 0;
  // Names by id and ids by name.
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId> ids_;
};

// Parses expressions; one function per level of precedence.
//
//   expression  =  either ["if" either ["else" expression]]
//   either      =  both {"or" both}                both     =  negation {"and" negation}
//   negation    =  "not" negation | comparison     comparison  =  sum {("==" | "<" | "in" | "not" "in" | …) sum}
//   sum         =  concat {("+" | "-") concat}     concat   =  product {"~" product}
//   product     =  power {("*" | "/" | "//" | "%") power}
//   power       =  unary {"**" unary}              unary    =  ("-" | "+") unary | primary postfix filters
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& reader) : reader_(reader) {}

  // Parses one expression; without `conditional` an "if" after it is not part of it.
  ExpressionPtr expression(bool conditional = true);
  // Parses one expression, or a tuple of several separated by commas, up to the end of the block or one of `ends`.
  ExpressionPtr tuple(bool conditional = true, std::initializer_list<std::string_view> ends = {});
  // Parses a name, an attribute of a namespace (with_namespace) or a tuple of them.
  Target target(bool with_namespace, std::initializer_list<std::string_view> ends = {});
  // Parses "| name(arguments) | …" after `input`; with `inline_start` the first filter has no "|".
  ExpressionPtr filters(ExpressionPtr input, bool inline_start = false);

 private:
  // One function per level of precedence, from the loosest to the tightest; each calls the next.
  ExpressionPtr either();  // or
  ExpressionPtr both();    // and
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  // Filters after a signed operand belong to the whole, so the operand is parsed without them.
  ExpressionPtr unary(bool with_filters = true);
  // Literals, names and brackets.
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr parenthesized();
  // Parts that follow an expression: .name, [key], (arguments), |filter, is test.
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters_and_tests(ExpressionPtr node);
  // a.b or a[…]; the key inside the brackets, one expression or a slice.
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr subscript_key(ExpressionPtr node, int line);
  // x is name arguments.
  ExpressionPtr test(ExpressionPtr node);
  ExpressionPtr call(ExpressionPtr callee);
  // (…) of a call, a filter or a test.
  CallArguments arguments();
  // Small parts of the grammar: a.b as a name, the target of an assignment, the end of an unbracketed tuple.
  std::string dotted_name();
  Target single_target(bool with_namespace);
  bool at_tuple_end(std::initializer_list<std::string_view> ends) const;

  TokenReader& reader_;
};

}  // namespace megalith::tokenizer::jinja
