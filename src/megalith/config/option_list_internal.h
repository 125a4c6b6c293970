// The notation of options/*.cc: typed bindings to struct members, one or two lines per option.
//
//   auto batch = list.part(&TrainingArguments::batch);
//   batch.add("global_batch_size", &BatchConfig::global_batch_size, "sequences per step").at_least(1);
//
// The member's C++ type decides everything that can be derived: the option's type, whether it may be None, its choices
// (for enumerations) and its default (the member's initializer). So a member and its option cannot disagree.
#pragma once

#include <concepts>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/config/option_table.h"

namespace megalith::config {

// FieldTraits<T>: the ValueType of a struct member of type T, and the conversions between T and Value.
template <typename T>
struct FieldTraits;

template <>
struct FieldTraits<bool> {
  static constexpr ValueType kType = ValueType::kBool;
  static Value to_value(bool field) { return field; }
  static bool from_value(const Value& value) { return std::get<bool>(value); }
};
// Integers of any width are int64_t in a Value; bind() sets the bounds of narrower members, so the cast is safe.
template <std::integral T>
struct FieldTraits<T> {
  static constexpr ValueType kType = ValueType::kInt;
  static Value to_value(T field) { return static_cast<int64_t>(field); }
  static T from_value(const Value& value) { return static_cast<T>(std::get<int64_t>(value)); }
};
template <>
struct FieldTraits<double> {
  static constexpr ValueType kType = ValueType::kFloat;
  static Value to_value(double field) { return field; }
  static double from_value(const Value& value) { return std::get<double>(value); }
};
template <>
struct FieldTraits<std::string> {
  static constexpr ValueType kType = ValueType::kText;
  static Value to_value(const std::string& field) { return field; }
  static std::string from_value(const Value& value) { return std::get<std::string>(value); }
};
template <>
struct FieldTraits<std::vector<std::string>> {
  static constexpr ValueType kType = ValueType::kTextList;
  static Value to_value(const std::vector<std::string>& field) { return field; }
  static std::vector<std::string> from_value(const Value& value) { return std::get<std::vector<std::string>>(value); }
};
template <std::integral T>
struct FieldTraits<std::vector<T>> {
  static constexpr ValueType kType = ValueType::kIntList;
  static Value to_value(const std::vector<T>& field) { return std::vector<int64_t>(field.begin(), field.end()); }
  static std::vector<T> from_value(const Value& value) {
    std::vector<T> field;
    for (int64_t item : std::get<std::vector<int64_t>>(value)) field.push_back(static_cast<T>(item));
    return field;
  }
};
template <>
struct FieldTraits<std::vector<double>> {
  static constexpr ValueType kType = ValueType::kFloatList;
  static Value to_value(const std::vector<double>& field) { return field; }
  static std::vector<double> from_value(const Value& value) { return std::get<std::vector<double>>(value); }
};
template <>
struct FieldTraits<JsonObject> {
  static constexpr ValueType kType = ValueType::kDict;
  static Value to_value(const JsonObject& field) { return field; }
  static JsonObject from_value(const Value& value) { return std::get<JsonObject>(value); }
};
// An enumeration is text with choices. from_value() relies on value_problem() having checked the word.
template <typename E>
  requires std::is_enum_v<E>
struct FieldTraits<E> {
  static constexpr ValueType kType = ValueType::kText;
  static Value to_value(E field) {
    const std::string_view name = choice_name(field);
    check(!name.empty(), "an enumerator has no name");
    return std::string(name);
  }
  static E from_value(const Value& value) {
    const std::optional<E> choice = choice_of<E>(std::get<std::string>(value));
    check(choice.has_value(), "a choice that was not checked: {}", std::get<std::string>(value));
    return *choice;
  }
};
template <typename T>
struct FieldTraits<std::optional<T>> {
  static constexpr ValueType kType = FieldTraits<T>::kType;
  static Value to_value(const std::optional<T>& field) {
    return field ? FieldTraits<T>::to_value(*field) : Value(std::monostate{});
  }
  static std::optional<T> from_value(const Value& value) {
    if (std::holds_alternative<std::monostate>(value)) return std::nullopt;
    return FieldTraits<T>::from_value(value);
  }
};

// Strips std::optional.
template <typename T>
struct Unwrapped {
  using type = T;
  static constexpr bool kOptional = false;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool kOptional = true;
};

// Returns the arguments as the structs initialize them, before any dialect's defaults.
const TrainingArguments& initial_arguments();

// An option under construction. Every call returns the object, so that an option reads as one sentence.
template <typename T>
class OptionEntry {
 public:
  explicit OptionEntry(Option& option) : option_(option) {}

  // Other names of the same option, and names that set it to false.
  OptionEntry& alias(std::initializer_list<const char*> names) {
    option_.aliases.insert(option_.aliases.end(), names.begin(), names.end());
    return *this;
  }
  OptionEntry& negated_by(std::initializer_list<const char*> names) {
    option_.negations.insert(option_.negations.end(), names.begin(), names.end());
    return *this;
  }
  // Inclusive bounds; for a list they apply to each item.
  OptionEntry& at_least(double minimum) {
    option_.minimum = minimum;
    return *this;
  }
  OptionEntry& at_most(double maximum) {
    option_.maximum = maximum;
    return *this;
  }
  // The allowed words; enumerations list theirs automatically.
  OptionEntry& choices(std::vector<std::string> words) {
    option_.choices = std::move(words);
    return *this;
  }
  // Reads a list from one word with commas.
  OptionEntry& commas() {
    option_.type = ValueType::kCommaList;
    return *this;
  }
  // Values of the reference that Megalith rejects, with the reason; refuse_others: all values but the choices.
  OptionEntry& refuse(std::initializer_list<const char*> values, const char* reason) {
    for (const char* value : values) option_.refused_values.push_back({value, reason});
    return *this;
  }
  OptionEntry& refuse_others(const char* reason) {
    option_.refused_others = reason;
    return *this;
  }
  // Lets the option also take a boolean, bare or written, which stands for one of these words.
  OptionEntry& bool_words(const char* for_true, const char* for_false) {
    option_.bool_words = {for_true, for_false};
    return *this;
  }
  // The default of pretrain where it differs from the member's initializer, which is that of train.
  OptionEntry& pretrain_default(const T& value) {
    option_.pretrain_default = FieldTraits<T>::to_value(value);
    return *this;
  }
  // The default of pretrain is None.
  OptionEntry& no_pretrain_default() {
    option_.pretrain_default = std::monostate{};
    return *this;
  }
  // Dialects whose --help lists the option; both accept every name.
  OptionEntry& train_only() {
    option_.in_pretrain = false;
    return *this;
  }
  OptionEntry& pretrain_only() {
    option_.in_train = false;
    return *this;
  }
  // Beside a model folder, whose config.json decides, the option is rejected; see Option::describes_new_model.
  OptionEntry& describes_new_model() {
    option_.describes_new_model = true;
    return *this;
  }
  // Exceptions: an option is implemented unless it says otherwise.
  OptionEntry& planned(const char* part) { return status(OptionStatus::kPlanned, part); }
  OptionEntry& no_effect(const char* reason) { return status(OptionStatus::kNoEffect, reason); }

 private:
  OptionEntry& status(OptionStatus value, const char* reason) {
    option_.status = value;
    option_.reason = reason;
    return *this;
  }

  Option& option_;
};

// Type and default of an option without a struct member.
struct Plain {
  ValueType type;
  bool optional;
  Value default_value;
};
// Options of other programs are flags or words; others have not been needed.
inline Plain flag(bool value) { return {ValueType::kBool, false, value}; }
inline Plain text(const char* value) { return {ValueType::kText, false, std::string(value)}; }
inline Plain opt_text() { return {ValueType::kText, true, {}}; }

// Collects the options, topic by topic.
class OptionList {
 public:
  // Options of one part of TrainingArguments.
  template <typename Part>
  class PartOptions {
   public:
    PartOptions(OptionList& list, Part TrainingArguments::*part) : list_(list), part_(part) {}
    template <typename T>
    OptionEntry<T> add(const char* name, T Part::*member, const char* help) {
      return list_.bind(name, part_, member, help);
    }

   private:
    OptionList& list_;
    Part TrainingArguments::*part_;
  };

  // Everything added from here on belongs to the topic `name`.
  void topic(const char* name) { topic_ = name; }
  // Returns the options of one member of TrainingArguments.
  template <typename Part>
  PartOptions<Part> part(Part TrainingArguments::*member) {
    return PartOptions<Part>(*this, member);
  }

  // Names of other programs that a line of foreign_options.txt cannot describe: with choices, or single refused values.
  OptionEntry<Value> no_effect(const char* name, const Plain& plain, const char* reason) {
    return OptionEntry<Value>(unbound(name, plain, OptionStatus::kNoEffect, reason));
  }
  OptionEntry<Value> refused(const char* name, const Plain& plain, const char* reason) {
    return OptionEntry<Value>(unbound(name, plain, OptionStatus::kRefused, reason));
  }

  // Returns all options and leaves the list empty.
  std::vector<Option> take() { return std::move(options_); }

 private:
  template <typename Part, typename T>
  OptionEntry<T> bind(const char* name, Part TrainingArguments::*part, T Part::*member, const char* help) {
    using Base = typename Unwrapped<T>::type;
    Option& option = append(name, help, OptionStatus::kImplemented, "");
    option.type = FieldTraits<T>::kType;
    option.optional = Unwrapped<T>::kOptional;
    option.read = [part, member](const TrainingArguments& args) -> Value {
      const Part& owner = args.*part;
      return FieldTraits<T>::to_value(owner.*member);
    };
    option.write = [part, member](TrainingArguments& args, const Value& value) {
      Part& owner = args.*part;
      owner.*member = FieldTraits<T>::from_value(value);
    };
    if constexpr (std::is_enum_v<Base>)
      for (const auto& [item, word] : EnumNames<Base>::kNames) option.choices.emplace_back(word);
    if constexpr (std::is_same_v<Base, int> || std::is_same_v<Base, std::vector<int>>) {
      option.minimum = std::numeric_limits<int>::min();
      option.maximum = std::numeric_limits<int>::max();
    }
    option.train_default = option.pretrain_default = option.read(initial_arguments());
    return OptionEntry<T>(option);
  }

  // An option that no member holds: it is parsed and checked, and then forgotten.
  Option& unbound(const char* name, const Plain& plain, OptionStatus status, const char* reason) {
    Option& option = append(name, "", status, reason);
    option.type = plain.type;
    option.optional = plain.optional;
    option.train_default = option.pretrain_default = plain.default_value;
    return option;
  }

  Option& append(const char* name, const char* help, OptionStatus status, const char* reason) {
    Option& option = options_.emplace_back();
    option.name = name;
    option.help = help;
    option.topic = topic_;
    option.status = status;
    option.reason = reason;
    return option;
  }

  std::vector<Option> options_;
  const char* topic_ = "";
};

// OptionTable::instance() calls these in the order of the documents.
void add_run_options(OptionList& list);
void add_parallel_options(OptionList& list);
void add_batch_options(OptionList& list);
void add_model_options(OptionList& list);
void add_moe_options(OptionList& list);
void add_memory_options(OptionList& list);
void add_precision_options(OptionList& list);
void add_optimizer_options(OptionList& list);
void add_schedule_options(OptionList& list);
void add_data_options(OptionList& list);
void add_indexed_data_options(OptionList& list);
void add_media_options(OptionList& list);
void add_adapter_options(OptionList& list);
void add_logging_options(OptionList& list);
void add_checkpoint_options(OptionList& list);
void add_fault_options(OptionList& list);

}  // namespace megalith::config
