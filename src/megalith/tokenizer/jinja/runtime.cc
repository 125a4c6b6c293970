// The budget of a rendering and the binding of arguments. Templates come with models from other people, so each
// rendering has a limit on steps, bytes and depth (Limits in template.h). Costs are charged before memory is allocated,
// and never returned: the budget bounds the total work, not the memory in use at one time, which needs no bookkeeping
// of lifetimes.
#include "megalith/tokenizer/jinja/runtime.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr int kMaxValueDepth = 200;  // levels of lists and dictionaries; destructors and printing recurse per level

}  // namespace

Value Object::call(Evaluator&, const Arguments&) {
  throw InternalError("an object was called that is not callable");  // is_callable() is false, and call() checks that
}

void Runtime::fail(std::string_view what) const {
  throw DataError(fmt::format("{}:{}: {}", template_name_, line_, what));
}

void Runtime::step(size_t count) {
  steps_ += count;
  if (steps_ > limits_.steps)
    fail(fmt::format("the template takes more than {} steps; is there an endless loop or macro?", limits_.steps));
}

// The second condition catches a single huge request, whose addition might wrap around.
void Runtime::pay_bytes(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.bytes || bytes > limits_.bytes)
    fail(fmt::format(
        "the template makes more than {} bytes of values; is there an endless loop, or a value that keeps doubling?",
        limits_.bytes));
}

// Filters and operators make their results with these three, so that every large value is charged.
Value Runtime::text(std::string text) {
  pay_bytes(text.size() + sizeof(std::string));
  return Value::text(std::move(text));
}

Value Runtime::sequence(Sequence::Kind kind, std::vector<Value> items) {
  pay_bytes(items.size() * sizeof(Value) + sizeof(Sequence));
  Value value = Value::sequence({kind, std::move(items)});
  if (value.depth() > kMaxValueDepth) fail(fmt::format("lists are nested more than {} levels deep", kMaxValueDepth));
  return value;
}

Value Runtime::dict(Dict dict) {
  pay_bytes(dict.entries().size() * sizeof(Dict::Entry) + sizeof(Dict));
  if (dict.depth() > kMaxValueDepth)
    fail(fmt::format("dictionaries are nested more than {} levels deep", kMaxValueDepth));
  return Value::dict(std::move(dict));
}

std::tm Runtime::now() const {
  if (now_) return *now_;
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

Runtime::Level::Level(Runtime& runtime) : runtime_(runtime) {
  if (++runtime_.level_ > runtime_.limits_.depth) {
    --runtime_.level_;  // the destructor does not run after a throw
    runtime_.fail(fmt::format("the template recurses more than {} levels deep; does a macro call itself?",
                              runtime_.limits_.depth));
  }
}

// ----------------------------------------------------------------------------------------------------------- arguments

// The messages are those of Python's functions.
Bound::Bound(const Runtime& runtime, std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> parameters, size_t required)
    : runtime_(runtime), function_(function), parameters_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters_.size())
    runtime_.fail(fmt::format("{}() takes at most {} arguments, {} are given", function_, parameters_.size(),
                              arguments.positional.size()));
  // Positions first, so that a name for an argument that is already given is found to be a second value.
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto match = std::ranges::find(parameters_, name);
    if (match == parameters_.end())
      runtime_.fail(fmt::format("{}() got an unexpected keyword argument '{}'; it knows: {}", function_, name,
                                fmt::join(parameters_, ", ")));
    std::optional<Value>& slot = values_[static_cast<size_t>(match - parameters_.begin())];
    if (slot) runtime_.fail(fmt::format("{}() got multiple values for argument '{}'", function_, name));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) runtime_.fail(fmt::format("{}() needs the argument '{}'", function_, parameters_[i]));
}

// An undefined argument is the template's real mistake, so its own message is shown.
void Bound::refuse(size_t i, std::string_view expected) const {
  if (values_[i]->is_undefined()) runtime_.fail(values_[i]->undefined_message());
  runtime_.fail(
      fmt::format("{}(): {} is of type '{}'; {} is expected", function_, parameters_[i], at(i).type_name(), expected));
}

const std::string& Bound::text(size_t i) const {
  if (!at(i).is_string()) refuse(i, "a string");
  return at(i).as_text();
}

std::string Bound::text_or(size_t i, std::string_view otherwise) const {
  return given(i) ? text(i) : std::string(otherwise);
}

int64_t Bound::integer(size_t i) const {
  const auto number = at(i).whole_number();
  if (!number) refuse(i, "a whole number");
  return *number;
}

}  // namespace megalith::tokenizer::jinja
