// What everything that runs while a template is rendered shares: where it is, what it may still spend, and the objects
// it has made.
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

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Something with attributes of its own, or that can be called: a macro, a function, `loop`, a namespace.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual std::optional<Value> attribute(Evaluator&, std::string_view) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Evaluator& evaluator, const Arguments& arguments);
};

class Runtime {
 public:
  Runtime(const std::string& template_name, const RenderOptions& options)
      : template_name_(template_name), limits_(options.limits), now_(options.now) {}

  // Throws DataError: "template:line: what".
  [[noreturn]] void fail(std::string_view what) const;
  const std::string& template_name() const { return template_name_; }
  void set_line(int line) { line_ = line; }
  int line() const { return line_; }

  // Every step of the evaluation, and every byte of a value that is made, is paid for; a template that spends more than
  // its limits fails.
  void step(size_t count = 1);
  void pay_bytes(size_t bytes);
  // Values that the runtime pays for. Lists and dictionaries may not lie too deep in one another.
  Value text(std::string text);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Kind::kList, std::move(items)); }
  Value dict(Dict dict);

  // Objects live until the end of the rendering, so they may refer to one another in circles.
  template <typename T, typename... Args>
  T& make(Args&&... args) {
    pay_bytes(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T& result = *object;
    objects_.push_back(std::move(object));
    return result;
  }

  std::tm now() const;

  // Held by every function that calls itself: expressions, macros, printing of nested values.
  class Level {
   public:
    explicit Level(Runtime& runtime);
    ~Level() { --runtime_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  const std::string& template_name_;
  Limits limits_;
  std::optional<std::tm> now_;
  int line_ = 1;
  int level_ = 0;
  size_t steps_ = 0;
  size_t bytes_ = 0;
  std::deque<std::unique_ptr<Object>> objects_;
};

// Arguments by position or name, as a Python function with these parameters takes them. Fails for those that do not
// fit, and for missing ones among the first `required`.
class Bound {
 public:
  Bound(const Runtime& runtime, std::string_view function, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters, size_t required = 0);

  bool has(size_t i) const { return values_[i].has_value(); }
  // Given, and not None.
  bool given(size_t i) const { return has(i) && !values_[i]->is_none(); }
  const Value& at(size_t i) const { return *values_[i]; }
  Value value_or(size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  bool flag(size_t i, bool otherwise) const { return has(i) ? values_[i]->truth() : otherwise; }
  // Of the type that is asked for; a failure names function and parameter.
  const std::string& text(size_t i) const;
  std::string text_or(size_t i, std::string_view otherwise) const;
  int64_t integer(size_t i) const;
  int64_t integer_or(size_t i, int64_t otherwise) const { return given(i) ? integer(i) : otherwise; }

 private:
  [[noreturn]] void refuse(size_t i, std::string_view expected) const;

  const Runtime& runtime_;
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace megalith::tokenizer::jinja
