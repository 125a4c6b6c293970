// Statements: walks the tree and writes text. Every statement and every byte is charged to the Runtime, and every
// recursion holds a Level, so a hostile template ends with an error instead of exhausting time, memory or the stack.
#include "megalith/tokenizer/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/tokenizer/jinja/objects.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

// Linear search: a frame has few variables.
void Scope::set(NameId name, Value value) {
  const auto found = std::ranges::find(values_, name, &std::pair<NameId, Value>::first);
  if (found == values_.end())
    values_.emplace_back(name, std::move(value));
  else
    found->second = std::move(value);
}

const Value* Scope::find(NameId name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    const auto found = std::ranges::find(scope->values_, name, &std::pair<NameId, Value>::first);
    if (found != scope->values_.end()) return &found->second;
  }
  return nullptr;
}

// Names are resolved to ids when parsing, so only names that occur in the template are looked up here.
Rendered Evaluator::run(const Dict& variables) {
  // Globals get a frame of their own, so that {% set %} at the top level hides them instead of replacing them.
  const auto globals = std::make_shared<Scope>(nullptr);
  for (size_t i = 0; i < tree_.names.size(); ++i) {
    // A variable of the caller hides a global function of its name.
    const Value* given = variables.find(tree_.names[i]);
    if (const auto value = given ? std::optional(*given) : make_global(runtime_, tree_.names[i]))
      globals->set(static_cast<NameId>(i), *value);
  }
  execute(tree_.body, std::make_shared<Scope>(globals));
  return std::move(rendered_);
}

// The only function that appends to the output.
void Evaluator::write(std::string_view text) {
  if (out_->size() + text.size() > max_output_)
    runtime_.fail(fmt::format("the text becomes longer than {} bytes", max_output_));
  runtime_.pay_bytes(text.size());
  *out_ += text;
}

// Redirects the output, also when `work` throws.
template <typename Work>
std::string Evaluator::collected(const Work& work) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  try {
    work();
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

std::string Evaluator::render_body(const Body& body, const ScopePtr& scope) {
  return collected([&] { execute(body, scope); });
}

std::string Evaluator::render_loop(const ForStatement& node, const Value& iterable, const ScopePtr& scope, int depth) {
  return collected([&] { run_loop(node, iterable, scope, depth); });
}

// ---------------------------------------------------------------------------------------------------------- statements

// Stops at the first break or continue and passes it up to the loop.
Evaluator::Flow Evaluator::execute(const Body& body, const ScopePtr& scope) {
  const Runtime::Level level(runtime_);
  for (const Statement& statement : body) {
    const Flow flow = execute(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::execute(const Statement& statement, const ScopePtr& scope) {
  runtime_.step();
  runtime_.set_line(statement.line);
  return std::visit([&](const auto& node) { return run(node, scope); }, statement.node);
}

Evaluator::Flow Evaluator::run(const TextStatement& node, const ScopePtr&) {
  write(node.text);
  return Flow::kNext;
}

// The branch for texts saves a copy: most of the output of a chat template is the content of messages.
Evaluator::Flow Evaluator::run(const OutputStatement& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.value, scope);
  if (value.is_string())
    write(value.as_text());
  else
    write(to_text(*this, value));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run(const IfStatement& node, const ScopePtr& scope) {
  for (const auto& [condition, body] : node.branches)
    if (evaluate(*condition, scope).truth()) return execute(body, scope);
  return execute(node.otherwise, scope);
}

Evaluator::Flow Evaluator::run(const ForStatement& node, const ScopePtr& scope) {
  run_loop(node, evaluate(*node.iterable, scope), scope, 1);
  return Flow::kNext;
}

// The filter of "for x in y if z" runs over all items first, since loop.length and loop.last count only those that are
// left. A continue needs nothing: execute() has already skipped the rest of the body.
void Evaluator::run_loop(const ForStatement& node, const Value& iterable, const ScopePtr& scope, int depth) {
  std::vector<Value> items = iterate(iterable);
  auto inner = std::make_shared<Scope>(scope);
  if (node.condition) {
    std::erase_if(items, [&](const Value& item) {
      inner->clear();
      assign(node.target, item, inner);
      return !evaluate(*node.condition, inner).truth();
    });
  }
  if (items.empty()) {
    execute(node.otherwise, scope);
    return;
  }
  Loop& loop = runtime_.make<Loop>(node, std::move(items), scope, depth);
  for (size_t i = 0; i < loop.items().size(); ++i) {
    loop.set_position(i);
    // A macro defined in the last iteration may still refer to its variables; then the iteration gets a new scope.
    if (inner.use_count() == 1)
      inner->clear();
    else
      inner = std::make_shared<Scope>(scope);
    inner->set(node.loop, Value::object(loop));
    assign(node.target, loop.items()[i], inner);
    if (execute(node.body, inner) == Flow::kBreak) break;
  }
}

Evaluator::Flow Evaluator::run(const SetStatement& node, const ScopePtr& scope) {
  assign(node.target, evaluate(*node.value, scope), scope);
  return Flow::kNext;
}

// Filters of a block form a chain whose innermost input is the block's text.
Value Evaluator::filtered(const Expression* filter, Value text, const ScopePtr& scope) {
  if (filter == nullptr) return text;
  const auto& node = std::get<FilterExpression>(filter->node);
  const Value input = filtered(node.input.get(), std::move(text), scope);
  return call_filter(node.name, input, arguments_of(node.arguments, scope));
}

// The body has its own frame, so a {% set %} inside it does not leak; the target is set in the frame around it.
Evaluator::Flow Evaluator::run(const SetBlockStatement& node, const ScopePtr& scope) {
  const Value text = runtime_.text(render_body(node.body, std::make_shared<Scope>(scope)));
  assign(node.target, filtered(node.filter.get(), text, scope), scope);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run(const FilterStatement& node, const ScopePtr& scope) {
  const Value text = runtime_.text(render_body(node.body, std::make_shared<Scope>(scope)));
  write(to_text(*this, filtered(node.filter.get(), text, scope)));
  return Flow::kNext;
}

// The macro keeps this scope alive, see run_loop.
Evaluator::Flow Evaluator::run(const MacroStatement& node, const ScopePtr& scope) {
  scope->set(node.name, Value::object(runtime_.make<Macro>(node.text, node.signature, node.body, scope)));
  return Flow::kNext;
}

// {% call f(x) %}: calls f with an argument `caller`, a macro that renders the body.
Evaluator::Flow Evaluator::run(const CallStatement& node, const ScopePtr& scope) {
  // {% generation %}, see StatementParser.
  if (!node.call) {
    run_generation(node.body, scope);
    return Flow::kNext;
  }
  const auto& call_node = std::get<CallExpression>(node.call->node);
  Arguments arguments = arguments_of(call_node.arguments, scope);
  arguments.named.emplace_back("caller",
                               Value::object(runtime_.make<Macro>("caller", node.signature, node.body, scope)));
  write(to_text(*this, call(evaluate(*call_node.callee, scope), arguments)));
  return Flow::kNext;
}

// Inside a macro or block that is being collected, transformers counts from the end of the text outside; so do we.
void Evaluator::run_generation(const Body& body, const ScopePtr& scope) {
  const size_t begin = rendered_.text.size();
  const std::string text = render_body(body, std::make_shared<Scope>(scope));
  rendered_.generation.emplace_back(begin, begin + text.size());
  write(text);
}

// All values are evaluated in the frame outside: {% with a = b, b = a %} swaps them.
Evaluator::Flow Evaluator::run(const WithStatement& node, const ScopePtr& scope) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, value] : node.values) assign(target, evaluate(*value, scope), inner);
  return execute(node.body, inner);
}

// A tuple is unpacked; an attribute can be set only on a namespace.
void Evaluator::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.name < 0) {
    const std::vector<Value> items = iterate(value);
    if (items.size() != target.items.size())
      runtime_.fail(fmt::format("{} values cannot be unpacked into {} names", items.size(), target.items.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope->set(target.name, value);
    return;
  }
  const Value* object = scope->find(target.name);
  auto* space =
      object != nullptr && object->is(Value::Kind::kObject) ? dynamic_cast<Namespace*>(&object->as_object()) : nullptr;
  if (space == nullptr)
    runtime_.fail(fmt::format("cannot assign attribute '{}' on '{}': it is not a namespace object", target.attribute,
                              tree_.names[static_cast<size_t>(target.name)]));
  space->set(runtime_, target.attribute, value);
}

// Dictionaries yield keys and texts characters, as in Python; an undefined value yields nothing, as in jinja2.
std::vector<Value> Evaluator::iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::Kind::kSequence:
      items = value.as_sequence().items;
      break;
    case Value::Kind::kUndefined:
      break;
    case Value::Kind::kDict:
      for (const auto& [key, unused] : value.as_dict().entries()) items.push_back(key);
      break;
    case Value::Kind::kString: {
      const std::string& text = value.as_text();
      runtime_.pay_bytes(text.size() * (sizeof(Value) + sizeof(std::string)));  // charged before it is built
      for (size_t at = 0; at < text.size(); at += utf8_length(text[at]))
        items.push_back(Value::text(text.substr(at, utf8_length(text[at]))));
      break;
    }
    default:
      runtime_.fail(fmt::format("'{}' object is not iterable", value.type_name()));
  }
  runtime_.step(items.size());
  runtime_.pay_bytes(items.size() * sizeof(Value));
  return items;
}

}  // namespace megalith::tokenizer::jinja
