// Runtime: the state that all code shares while a template is rendered: the current line, the remaining budget, and the
// objects made so far. Bound: the arguments of a function by name, checked like Python's.
#pragma once

#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/tokenizer/jinja/template.h"
#include "megalith/tokenizer/jinja/value.h"

namespace megalith::tokenizer::jinja {

class Evaluator;

// Evaluated arguments of a call.
struct Arguments {
  // In the order of the call; named ones may repeat a name, which Bound refuses.
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A value with its own attributes, or that can be called: a macro, a function, `loop`, a namespace.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  // The name of the type in messages.
  virtual std::string_view type_name() const = 0;
  // Returns object.name; std::nullopt when there is none.
  virtual std::optional<Value> attribute(Evaluator&, std::string_view) { return std::nullopt; }
  // Whether it can be called; call() is used only if so.
  virtual bool is_callable() const { return false; }
  // Throws InternalError unless overridden.
  virtual Value call(Evaluator& evaluator, const Arguments& arguments);
};

// State of one rendering. One thread. The budget (Limits) is spent as follows:
//
//   step()       each statement and expression, each element of a loop, each comparison of a sort or a search
//   pay_bytes()  each text, list and dictionary that is made, before it is made
//   Level        each recursion: expressions in expressions, macros in macros, printing of nested values
class Runtime {
 public:
  Runtime(const std::string& template_name, const RenderOptions& options)
      : template_name_(template_name), limits_(options.limits), now_(options.now) {}

  // Throws DataError: "template:line: what".
  [[noreturn]] void fail(std::string_view what) const;
  // The template, and the line that messages name. The evaluator sets it at every node.
  const std::string& template_name() const { return template_name_; }
  void set_line(int line) { line_ = line; }
  int line() const { return line_; }

  // Charge a step of the evaluation, or bytes of a value that is made. A template that exceeds its limits fails.
  void step(size_t count = 1);
  void pay_bytes(size_t bytes);
  // Make values and charge for them. Lists and dictionaries must not be nested too deeply.
  Value text(std::string text);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Kind::kList, std::move(items)); }
  Value dict(Dict dict);

  // Makes an object that lives until the end of the rendering, so objects may refer to one another in cycles.
  template <typename T, typename... Args>
  T& make(Args&&... args) {
    pay_bytes(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T& result = *object;
    objects_.push_back(std::move(object));
    return result;
  }

  // The time that strftime_now prints.
  std::tm now() const;

  // Held by every function that recurses: expressions, macros, printing of nested values. Fails when the depth exceeds
  // the limit.
  class Level {
   public:
    // Throws DataError when the limit is exceeded.
    explicit Level(Runtime& runtime);
    ~Level() { --runtime_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  // Constant: the name and the limits.
  const std::string& template_name_;
  Limits limits_;
  std::optional<std::tm> now_;
  // Counters; they only grow, except for level_.
  int line_ = 1;
  int level_ = 0;
  size_t steps_ = 0;
  size_t bytes_ = 0;
  // All objects made so far; freed with the Runtime.
  std::deque<std::unique_ptr<Object>> objects_;
};

// Binds arguments by position or name, like a Python function with these parameters. Fails for arguments that do not
// fit, and for missing ones among the first `required`.
class Bound {
 public:
  // The first `required` parameters must be given. `function` is for messages.
  Bound(const Runtime& runtime, std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters, size_t required = 0);

  // Whether parameter i is given, even as None.
  bool has(size_t i) const { return values_[i].has_value(); }
  // Given, and not None.
  bool given(size_t i) const { return has(i) && !values_[i]->is_none(); }
  // Return a parameter; at() requires has(i), the others replace a missing one.
  const Value& at(size_t i) const { return *values_[i]; }
  Value value_or(size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  bool flag(size_t i, bool otherwise) const { return has(i) ? values_[i]->truth() : otherwise; }
  // Return a value of the requested type; a failure names the function and the parameter.
  const std::string& text(size_t i) const;
  std::string text_or(size_t i, std::string_view otherwise) const;
  int64_t integer(size_t i) const;
  int64_t integer_or(size_t i, int64_t otherwise) const { return given(i) ? integer(i) : otherwise; }

 private:
  // Fails because parameter i is not of the expected type.
  [[noreturn]] void refuse(size_t i, std::string_view expected) const;

  const Runtime& runtime_;
  std::string function_;
  // Names and values by position; a missing value is std::nullopt.
  std::vector<std::string_view> parameters_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace megalith::tokenizer::jinja
