// Macros, loops and functions as values. They are made by Runtime::make, live until the rendering ends, and may refer
// to nodes of the tree, which outlives them.
#pragma once

#include <utility>

#include "megalith/tokenizer/jinja/evaluator.h"

namespace megalith::tokenizer::jinja {

// {% macro %} and the body of {% call %}. The tree outlives it.
class Macro : public Object {
 public:
  // `scope` is the frame of its definition; each call gets a new frame inside it.
  Macro(std::string name, const Signature& signature, const Body& body, ScopePtr scope)
      : name_(std::move(name)), signature_(signature), body_(body), scope_(std::move(scope)) {}

  std::string_view type_name() const override { return "Macro"; }
  // macro.name and macro.arguments.
  std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
  bool is_callable() const override { return true; }
  // Renders the body with the arguments as variables and returns its text.
  Value call(Evaluator& evaluator, const Arguments& arguments) override;

 private:
  // Sets the parameters in the frame of a call.
  void bind(Evaluator& evaluator, const Arguments& arguments, const ScopePtr& scope) const;

  std::string name_;
  const Signature& signature_;
  const Body& body_;
  ScopePtr scope_;  // frame of its definition
};

// The variable `loop`. Calling it runs a recursive loop over something else.
class Loop : public Object {
 public:
  // `items` have passed the loop's condition; `depth` is 1 for the outermost of recursive loops.
  Loop(const ForStatement& node, std::vector<Value> items, ScopePtr scope, int depth)
      : node_(node), items_(std::move(items)), scope_(std::move(scope)), depth_(depth) {}

  // The elements, and the one of the current iteration, on which loop.index, loop.first and the like depend.
  const std::vector<Value>& items() const { return items_; }
  // Called by the evaluator at the start of each iteration.
  void set_position(size_t position) { position_ = position; }

  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
  bool is_callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override;
  // loop.changed(…): returns whether the arguments differ from those of the last call.
  bool changed(const Arguments& arguments);

 private:
  // The loop, its elements, and the number of recursive calls around it.
  const ForStatement& node_;
  const std::vector<Value> items_;
  ScopePtr scope_;  // the scope around the loop
  const int depth_;
  size_t position_ = 0;
  std::optional<Value> last_;  // arguments of the last changed()
};

// A function as a value: "text".split, loop.cycle, range.
class Function : public Object {
 public:
  using Body = std::function<Value(Evaluator& evaluator, const Arguments& arguments)>;
  // `body` may capture anything that lives until the end of the rendering.
  explicit Function(Body body) : body_(std::move(body)) {}

  std::string_view type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override { return body_(evaluator, arguments); }

 private:
  // Called with the evaluator of the rendering and the evaluated arguments.
  Body body_;
};

}  // namespace megalith::tokenizer::jinja
