// Evaluator: runs a parsed template. It walks the tree (tree.h) directly; there is no compiled form, because chat
// templates are short.
//
//   statements   evaluator.cc      execute() and run() write text, and say how control continues
//   expressions  expressions.cc    evaluate() and value_of() return values
//   the rest     operators.cc, methods.cc, *_filters.cc, tests.cc, globals.cc, text.cc, format.cc
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/tokenizer/jinja/runtime.h"
#include "megalith/tokenizer/jinja/tree.h"

namespace megalith::tokenizer::jinja {

// The variables of one frame: the template, an iteration of a loop, the call of a macro, or a block with its own
// variables. Lookup continues in the enclosing frame, where the code was written.
class Scope {
 public:
  // `outer` is the enclosing frame; nullptr for the outermost one.
  explicit Scope(std::shared_ptr<const Scope> outer) : outer_(std::move(outer)) {}
  // Sets a variable of this frame, hiding one of an enclosing frame.
  void set(NameId name, Value value);
  // Returns the innermost variable of that name; nullptr when there is none. Valid until the frame changes.
  const Value* find(NameId name) const;
  // Forgets all variables of this frame, for the next iteration of a loop.
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<const Scope> outer_;
  std::vector<std::pair<NameId, Value>> values_;
};
using ScopePtr = std::shared_ptr<Scope>;

// Runs one rendering; not reusable. One thread.
class Evaluator {
 public:
  // `tree` and `runtime` outlive it; `max_output` is the limit of the text in bytes.
  Evaluator(const Tree& tree, Runtime& runtime, size_t max_output)
      : tree_(tree), runtime_(runtime), max_output_(max_output) {}

  // Renders the template. Throws DataError, naming the line, for every error of the template and for exceeded limits.
  Rendered run(const Dict& variables);

  // The budget and the messages of this rendering.
  Runtime& runtime() { return runtime_; }

  // env.getattr and env.getitem of jinja2's sandbox: attribute() tries attributes and methods, then keys; subscript()
  // the other way round.
  Value attribute(const Value& object, std::string_view name);
  Value subscript(const Value& object, const Value& key);
  // Call a value, a filter or a test. They fail for a value that cannot be called and for unknown names.
  Value call(const Value& callee, const Arguments& arguments);
  Value call_filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool call_test(std::string_view name, const Value& input, const Arguments& arguments);
  // Returns the elements that a for loop visits; fails for a value that is not iterable.
  std::vector<Value> iterate(const Value& value);

  // For macros and recursive loops: return the text that they produce in a scope.
  std::string render_body(const Body& body, const ScopePtr& scope);
  std::string render_loop(const ForStatement& node, const Value& iterable, const ScopePtr& scope, int depth);
  // Returns the value of an expression with the variables of `scope`.
  Value evaluate(const Expression& expression, const ScopePtr& scope);

 private:
  enum class Flow { kNext, kBreak, kContinue };  // the next statement, or a jump within the innermost loop

  // Statements. One overload of run() per node of the tree; std::visit chooses it.
  Flow execute(const Body& body, const ScopePtr& scope);
  Flow execute(const Statement& statement, const ScopePtr& scope);
  Flow run(const TextStatement& node, const ScopePtr& scope);
  Flow run(const OutputStatement& node, const ScopePtr& scope);
  Flow run(const IfStatement& node, const ScopePtr& scope);
  Flow run(const ForStatement& node, const ScopePtr& scope);
  Flow run(const SetStatement& node, const ScopePtr& scope);
  Flow run(const SetBlockStatement& node, const ScopePtr& scope);
  Flow run(const MacroStatement& node, const ScopePtr& scope);
  Flow run(const CallStatement& node, const ScopePtr& scope);
  Flow run(const FilterStatement& node, const ScopePtr& scope);
  Flow run(const WithStatement& node, const ScopePtr& scope);
  Flow run(const BreakStatement&, const ScopePtr&) { return Flow::kBreak; }
  Flow run(const ContinueStatement&, const ScopePtr&) { return Flow::kContinue; }
  // Runs all iterations; `depth` counts recursive calls of the loop, from 1.
  void run_loop(const ForStatement& node, const Value& iterable, const ScopePtr& scope, int depth);
  // Renders a {% generation %} block and notes its range.
  void run_generation(const Body& body, const ScopePtr& scope);
  // Sets a name, an attribute of a namespace, or each name of a tuple.
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  // Appends to the current output; fails when it becomes too long.
  void write(std::string_view text);
  // Returns what `work` writes instead of adding it to the output.
  template <typename Work>
  std::string collected(const Work& work);
  // Applies the filters of a block, {% filter a | b %} or {% set x | a %}, to its text.
  Value filtered(const Expression* filter, Value text, const ScopePtr& scope);

  // Expressions. One overload of value_of() per node of the tree.
  Value value_of(const Literal& node, const ScopePtr&) { return node.value; }
  Value value_of(const NameExpression& node, const ScopePtr& scope);
  Value value_of(const ListExpression& node, const ScopePtr& scope);
  Value value_of(const DictExpression& node, const ScopePtr& scope);
  Value value_of(const UnaryExpression& node, const ScopePtr& scope);
  Value value_of(const BinaryExpression& node, const ScopePtr& scope);
  Value value_of(const ConcatExpression& node, const ScopePtr& scope);
  Value value_of(const ComparisonExpression& node, const ScopePtr& scope);
  Value value_of(const ConditionalExpression& node, const ScopePtr& scope);
  Value value_of(const AttributeExpression& node, const ScopePtr& scope);
  Value value_of(const SubscriptExpression& node, const ScopePtr& scope);
  Value value_of(const SliceExpression& node, const ScopePtr& scope);
  Value value_of(const CallExpression& node, const ScopePtr& scope);
  Value value_of(const FilterExpression& node, const ScopePtr& scope);
  Value value_of(const TestExpression& node, const ScopePtr& scope);
  Arguments arguments_of(const CallArguments& node, const ScopePtr& scope);

  // Borrowed, and the text that is being made.
  const Tree& tree_;
  Runtime& runtime_;
  size_t max_output_;
  Rendered rendered_;
  std::string* out_ = &rendered_.text;  // target of text: the result, or what a macro or block is collecting
};

// --------------------------------------------------------------------------------------------- what the evaluator uses

// Python's str and repr: 'a' prints as a, and inside a list as 'a'. An undefined value is an empty text.
std::string to_text(Evaluator& evaluator, const Value& value);
std::string to_repr(Evaluator& evaluator, const Value& value);

// Arithmetic and comparison with Python's rules; fail for operands that do not fit, with Python's messages. `negated`
// is unary minus or plus.
Value arithmetic(Evaluator& evaluator, BinaryOperator op, const Value& a, const Value& b);
Value negated(Evaluator& evaluator, const Value& value, UnaryOperator op);
bool compare(Evaluator& evaluator, ComparisonOperator op, const Value& a, const Value& b);
// a < b for sorting: numbers, texts, and sequences of them.
bool less(Evaluator& evaluator, const Value& a, const Value& b);
// value[start:stop:step]; each of the three may be None.
Value slice(Evaluator& evaluator, const Value& value, const Value& start, const Value& stop, const Value& step);
// len(); fails for values without a length.
size_t length(Evaluator& evaluator, const Value& value);

// Methods of strings, lists and dictionaries; nullptr when the type has none of that name.
using Method = Value (*)(Evaluator& evaluator, const Value& self, const Arguments& arguments);
// text.upper(), messages.index(x), message.items().
Method find_method(const Value& object, std::string_view name);
// Returns whether a method of that name would change the object, which chat templates must not do.
bool changes_object(const Value& object, std::string_view name);

// Filters and tests by name; nullptr when there is none.
using Filter = Value (*)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
// An entry of a table of filters.
struct NamedFilter {
  std::string_view name;
  Filter call;
};
// All filters; it looks in its own table (lists), then in the two others.
Filter find_filter(std::string_view name);
Filter find_text_filter(std::string_view name);   // filters of a text
Filter find_value_filter(std::string_view name);  // filters of one value of any kind
using Test = bool (*)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
// x is defined, x is divisibleby(3).
Test find_test(std::string_view name);

// Returns the global function of that name (range, namespace, …); std::nullopt when there is none.
std::optional<Value> make_global(Runtime& runtime, std::string_view name);

// A namespace: attributes that a template may set.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
  // Sets an attribute; fails for names that start with an underscore, as the sandbox does.
  void set(Runtime& runtime, std::string_view name, Value value);
  // All attributes, in the order in which they were first set.
  const Dict& values() const { return values_; }

 private:
  Dict values_;
};

// "%s of %d" % values, and "{} of {x}".format(…).
std::string printf_text(Evaluator& evaluator, const std::string& format, const Value& values);
std::string format_text(Evaluator& evaluator, const std::string& format, const Arguments& arguments);

// Parameters of json.dumps.
struct JsonStyle {
  // transformers' defaults for |tojson: characters beyond ASCII stay as they are, and keys keep their order.
  bool ensure_ascii = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// json.dumps(value). Fails for values that JSON cannot express.
std::string to_json(Evaluator& evaluator, const Value& value, const JsonStyle& style);

}  // namespace megalith::tokenizer::jinja
