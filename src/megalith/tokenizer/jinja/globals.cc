// The functions that every template knows: jinja2's range, dict, namespace, cycler and joiner, and transformers'
// raise_exception and strftime_now. A variable of the same name hides them. They become objects only if the template
// mentions them (Evaluator::run).
#include <fmt/format.h>

#include <algorithm>

#include "megalith/tokenizer/jinja/evaluator.h"
#include "megalith/tokenizer/jinja/objects.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

// range(stop) or range(start, stop, step). The numbers are stored, so the limit also bounds memory.
Value make_range(Evaluator& e, const Arguments& arguments) {
  const Bound bound(e.runtime(), "range", arguments, {"start", "stop", "step"}, 1);
  const int64_t start = bound.has(1) ? bound.integer(0) : 0;
  const int64_t stop = bound.has(1) ? bound.integer(1) : bound.integer(0);
  const int64_t step = bound.has(2) ? bound.integer(2) : 1;
  if (step == 0) e.runtime().fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() == kMaxRange)
      e.runtime().fail(fmt::format("range too big: the sandbox allows {} elements", kMaxRange));
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;  // the next element does not fit into 64 bits
  }
  e.runtime().step(items.size());
  return e.runtime().sequence(Sequence::Kind::kRange, std::move(items));
}

// dict(…): a mapping or pairs, and keywords.
Dict dict_of(Evaluator& e, const Arguments& arguments, std::string_view function) {
  Dict dict;
  if (arguments.positional.size() > 1) e.runtime().fail(fmt::format("{}() expected at most 1 argument", function));
  for (const Value& source : arguments.positional) {
    if (source.is(Value::Kind::kDict)) {
      for (const auto& [key, value] : source.as_dict().entries()) dict.set(key, value);
      continue;
    }
    for (const Value& pair : e.iterate(source)) {
      const std::vector<Value> parts = e.iterate(pair);
      if (parts.size() != 2) e.runtime().fail(fmt::format("{}(): pairs of key and value are expected", function));
      dict.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict.set(name, value);
  return dict;
}

Value make_dict(Evaluator& e, const Arguments& arguments) { return e.runtime().dict(dict_of(e, arguments, "dict")); }

// namespace(a=1): the only value that a template can change, by {% set ns.a = 2 %}.
Value make_namespace(Evaluator& e, const Arguments& arguments) {
  Namespace& space = e.runtime().make<Namespace>();
  const Dict values = dict_of(e, arguments, "namespace");
  for (const auto& [key, value] : values.entries()) {
    if (!key.is_string()) e.runtime().fail("namespace(): names must be strings");
    space.set(e.runtime(), key.as_text(), value);
  }
  return Value::object(space);
}

// How a template refuses a conversation, for instance one in which the roles do not alternate.
Value raise_exception(Evaluator& e, const Arguments& arguments) {
  const Bound bound(e.runtime(), "raise_exception", arguments, {"message"}, 1);
  e.runtime().fail(fmt::format("the template refuses this input: {}", to_text(e, bound.at(0))));
}

Value strftime_now(Evaluator& e, const Arguments& arguments) {
  const Bound bound(e.runtime(), "strftime_now", arguments, {"format"}, 1);
  const std::string& format = bound.text(0);
  if (format.empty()) return e.runtime().text("");
  const std::tm now = e.runtime().now();
  // strftime returns 0 if its buffer is too small. In the C locale a conversion of two characters writes at most 24
  // (%c), which 16 per character cover.
  std::string text(format.size() * 16 + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &now));
  return e.runtime().text(std::move(text));
}

// Returns its items one after another, and then starts again.
class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Evaluator& e, std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name != "next" && name != "reset") return std::nullopt;
    const bool reset = name == "reset";
    return Value::object(e.runtime().make<Function>([this, reset](Evaluator&, const Arguments&) {
      const Value current = items_[at_];
      at_ = reset ? 0 : (at_ + 1) % items_.size();
      return reset ? Value() : current;
    }));
  }

 private:
  std::vector<Value> items_;
  size_t at_ = 0;
};

Value make_cycler(Evaluator& e, const Arguments& arguments) {
  if (arguments.positional.empty()) e.runtime().fail("cycler(): at least one item has to be provided");
  return Value::object(e.runtime().make<Cycler>(arguments.positional));
}

// Returns a function that gives "" at its first call, and the separator afterwards.
Value make_joiner(Evaluator& e, const Arguments& arguments) {
  const Bound bound(e.runtime(), "joiner", arguments, {"sep"});
  const Value separator = bound.value_or(0, Value::text(", "));
  return Value::object(e.runtime().make<Function>([separator, used = false](Evaluator&, const Arguments&) mutable {
    return std::exchange(used, true) ? separator : Value::text("");
  }));
}

struct NamedFunction {
  std::string_view name;
  Value (*call)(Evaluator&, const Arguments&);
};
constexpr NamedFunction kFunctions[] = {{"range", make_range},          {"dict", make_dict},
                                        {"namespace", make_namespace},  {"raise_exception", raise_exception},
                                        {"strftime_now", strftime_now}, {"cycler", make_cycler},
                                        {"joiner", make_joiner}};

}  // namespace

std::optional<Value> make_global(Runtime& runtime, std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &NamedFunction::name);
  if (found == std::end(kFunctions)) return std::nullopt;
  return Value::object(runtime.make<Function>(found->call));
}

}  // namespace megalith::tokenizer::jinja
