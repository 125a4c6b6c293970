// One function per group of instructions. The stack holds pointers to values of the Pickle, and nullptr for a mark.
// Containers are filled after they were pushed and may be in the memo already, so everything refers to values by
// address, and nothing is copied.
//
// Memory: every value takes at least one byte of the program, texts and bytes are parts of it, and items are put onto
// the stack one by one. Repeated references (memo, DUP) cost a pointer each. So memory is bounded by the size of the
// program, and by kMostPickleValues.
#include "megalith/hf/foreign/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/pickle_ops_internal.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {

using Kind = PickleValue::Kind;

// Runs the program of one pickle. A friend of Pickle, which it fills.
class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::unique_ptr<const Pickle> read() {
    uint8_t op = 0;
    while ((op = number<uint8_t>()) != kStop) step(op);
    check_that(stack_.size() == 1 && stack_[0], "its program ends with {} values on the stack", stack_.size());
    pickle_->root_ = stack_[0];
    return std::move(pickle_);
  }

 private:
  template <typename... Args>
  void check_that(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition)
      throw DataError(fmt::format("{}: not a pickle that torch writes: {} (at byte {})", name_,
                                  fmt::format(format, std::forward<Args>(args)...), at_));
  }

  // ---- The program ----
  std::string_view take(uint64_t bytes) {
    check_that(bytes <= bytes_.size() - at_, "{} bytes are needed where {} are left", bytes, bytes_.size() - at_);
    const std::string_view taken = bytes_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    check_that(end != std::string_view::npos, "a line without an end");
    const std::string_view text = take(end - at_);
    ++at_;
    return text;
  }

  // ---- The stack ----
  PickleValue* make(Kind kind) {
    check_that(pickle_->values_.size() < kMostPickleValues, "more than {} values", kMostPickleValues);
    PickleValue& value = pickle_->values_.emplace_back();
    value.kind = kind;
    return &value;
  }
  PickleValue* push(Kind kind) {
    stack_.push_back(make(kind));
    return stack_.back();
  }
  void push_text(Kind kind, std::string_view text) { push(kind)->text = text; }
  void push_int(int64_t value) { push(Kind::kInt)->integer = value; }
  PickleValue* top() const {
    check_that(!stack_.empty() && stack_.back(), "an instruction without its value");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  // Takes the values above the last mark off, and the mark.
  std::vector<PickleValue*> pop_to_mark() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), nullptr);
    check_that(mark != stack_.rend(), "an instruction without its mark");
    std::vector<PickleValue*> values(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    --marks_;
    return values;
  }
  void push_sequence(Kind kind, const std::vector<PickleValue*>& items) {
    push(kind)->items.assign(items.begin(), items.end());
  }
  void push_tuple(size_t size) {
    check_that(stack_.size() >= size, "a tuple of {} values, which are not there", size);
    std::vector<PickleValue*> items(stack_.end() - static_cast<std::ptrdiff_t>(size), stack_.end());
    check_that(std::ranges::find(items, nullptr) == items.end(), "a tuple across a mark");
    stack_.resize(stack_.size() - size);
    push_sequence(Kind::kTuple, items);
  }

  // ---- Containers ----
  void add_pairs(PickleValue* to, const std::vector<PickleValue*>& values) const {
    check_that(to->is(Kind::kDict) || to->is(Kind::kObject), "items are set in something that has none");
    check_that(values.size() % 2 == 0, "a key without a value");
    for (size_t i = 0; i < values.size(); i += 2) to->pairs.emplace_back(values[i], values[i + 1]);
  }
  void add_items(PickleValue* to, const std::vector<PickleValue*>& values, Kind kind) const {
    check_that(to->is(kind) || to->is(Kind::kObject), "values are added to something that takes none");
    to->items.insert(to->items.end(), values.begin(), values.end());
  }

  // ---- Objects ----
  // Refuses what a checkpoint cannot need: the file may have been made to attack its readers.
  void push_global(std::string_view module, std::string_view name) {
    if (!is_known_to_checkpoints(module, name))
      throw DataError(fmt::format(
          "{}: the pickle names {}, which a checkpoint does not need. Such a file runs code in a program that loads it"
          " with Python's pickle; nothing of it has been run here. If you trust the file, load it in its own program "
          "and"
          " save the weights as safetensors",
          name_, io::in_quotes(fmt::format("{}.{}", module, name))));
    push_text(Kind::kGlobal, fmt::format("{}.{}", module, name));
  }
  void stack_global() {
    const PickleValue *name = pop(), *module = pop();
    check_that(name->is(Kind::kText) && module->is(Kind::kText), "a class whose name is not a text");
    push_global(module->text, name->text);
  }
  // Describes the object that `args` would make.
  void make_object(const PickleValue* args) {
    const PickleValue* maker = pop();
    check_that(maker->is(Kind::kGlobal), "something is called that is not a class or function");
    check_that(args->is(Kind::kTuple), "arguments that are not a tuple");
    PickleValue* made = push(Kind::kObject);
    made->text = maker->text;
    made->args = args;
  }
  void make_object_with_keywords() {
    pop();  // the keywords
    make_object(pop());
  }
  void build() {
    const PickleValue* state = pop();
    check_that(top()->is(Kind::kObject), "a state for something that is not an object");
    top()->state = state;
  }

  // ---- Numbers ----
  // A whole number in two's complement, lowest byte first.
  void push_long(uint64_t size) {
    const std::string_view digits = take(size);
    if (size > 8) return push_text(Kind::kBytes, digits);
    uint64_t value = size > 0 && (static_cast<uint8_t>(digits.back()) & 0x80U) ? ~uint64_t{0} : 0;
    for (size_t i = size; i-- > 0;) value = (value << 8U) | static_cast<uint8_t>(digits[i]);
    push_int(static_cast<int64_t>(value));
  }
  void push_float() { push(Kind::kFloat)->number = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>())); }

  // ---- The memo ----
  void put(uint64_t key) { memo_[key] = top(); }
  void get(uint64_t key) {
    const auto found = memo_.find(key);
    check_that(found != memo_.end(), "memo {} is used before it is set", key);
    stack_.push_back(found->second);
  }

  void step(uint8_t op) {
    if (step_constant(op) || step_container(op) || step_object(op)) return;
    switch (op) {
      case kProto: {
        const int version = number<uint8_t>();
        check_that(version >= 2 && version <= 5, "protocol {}; 2 to 5 are read", version);
        return;
      }
      case kFrame:
        check_that(number<uint64_t>() <= bytes_.size() - at_, "a frame beyond the end");
        return;
      case kMark:
        check_that(++marks_ <= kDeepestPickle, "more than {} marks", kDeepestPickle);
        return stack_.push_back(nullptr);
      case kPop:
        check_that(!stack_.empty(), "an instruction without its value");
        if (!stack_.back()) --marks_;
        return stack_.pop_back();
      case kPopMark:
        pop_to_mark();
        return;
      case kDup:
        return stack_.push_back(top());
      case kBinPut:
        return put(number<uint8_t>());
      case kLongBinPut:
        return put(number<uint32_t>());
      case kMemoize:
        return put(memo_.size());
      case kBinGet:
        return get(number<uint8_t>());
      case kLongBinGet:
        return get(number<uint32_t>());
      default:
        check_that(false, "instruction 0x{:02x}", op);
    }
  }

  // Pushes a constant; returns whether the instruction does.
  bool step_constant(uint8_t op) {
    switch (op) {
      case kNone:
        push(Kind::kNone);
        return true;
      case kNewTrue:
        push(Kind::kBool)->integer = 1;
        return true;
      case kNewFalse:
        push(Kind::kBool);
        return true;
      case kBinInt:
        push_int(number<int32_t>());
        return true;
      case kBinInt1:
        push_int(number<uint8_t>());
        return true;
      case kBinInt2:
        push_int(number<uint16_t>());
        return true;
      case kLong1:
        push_long(number<uint8_t>());
        return true;
      case kLong4:
        push_long(number<uint32_t>());
        return true;
      case kBinFloat:
        push_float();
        return true;
      case kShortBinUnicode:
        push_text(Kind::kText, take(number<uint8_t>()));
        return true;
      case kBinUnicode:
        push_text(Kind::kText, take(number<uint32_t>()));
        return true;
      case kBinUnicode8:
        push_text(Kind::kText, take(number<uint64_t>()));
        return true;
      case kShortBinString:
        push_text(Kind::kText, take(number<uint8_t>()));
        return true;
      case kBinString:
        push_text(Kind::kText, take(number<uint32_t>()));
        return true;
      case kShortBinBytes:
        push_text(Kind::kBytes, take(number<uint8_t>()));
        return true;
      case kBinBytes:
        push_text(Kind::kBytes, take(number<uint32_t>()));
        return true;
      case kBinBytes8:
      case kByteArray8:
        push_text(Kind::kBytes, take(number<uint64_t>()));
        return true;
      default:
        return false;
    }
  }

  bool step_container(uint8_t op) {
    switch (op) {
      case kEmptyDict:
        push(Kind::kDict);
        return true;
      case kEmptyList:
        push(Kind::kList);
        return true;
      case kEmptySet:
        push(Kind::kSet);
        return true;
      case kEmptyTuple:
        push(Kind::kTuple);
        return true;
      case kTuple1:
        push_tuple(1);
        return true;
      case kTuple2:
        push_tuple(2);
        return true;
      case kTuple3:
        push_tuple(3);
        return true;
      case kTuple:
        push_sequence(Kind::kTuple, pop_to_mark());
        return true;
      case kList:
        push_sequence(Kind::kList, pop_to_mark());
        return true;
      case kFrozenSet:
        push_sequence(Kind::kSet, pop_to_mark());
        return true;
      case kDict: {
        const auto values = pop_to_mark();
        add_pairs(push(Kind::kDict), values);
        return true;
      }
      case kAppend: {
        PickleValue* item = pop();
        add_items(top(), {item}, Kind::kList);
        return true;
      }
      case kAppends: {
        const auto values = pop_to_mark();
        add_items(top(), values, Kind::kList);
        return true;
      }
      case kAddItems: {
        const auto values = pop_to_mark();
        add_items(top(), values, Kind::kSet);
        return true;
      }
      case kSetItem: {
        PickleValue *value = pop(), *key = pop();
        add_pairs(top(), {key, value});
        return true;
      }
      case kSetItems: {
        const auto values = pop_to_mark();
        add_pairs(top(), values);
        return true;
      }
      default:
        return false;
    }
  }

  bool step_object(uint8_t op) {
    switch (op) {
      case kGlobal: {
        const std::string_view module = line();
        push_global(module, line());
        return true;
      }
      case kStackGlobal:
        stack_global();
        return true;
      case kReduce:
      case kNewObj:
        make_object(pop());
        return true;
      case kNewObjEx:
        make_object_with_keywords();
        return true;
      case kBuild:
        build();
        return true;
      case kBinPersId: {
        const PickleValue* id = pop();
        push(Kind::kPersistent)->args = id;
        return true;
      }
      default:
        return false;
    }
  }

  const std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
  std::unique_ptr<Pickle> pickle_ = std::make_unique<Pickle>();
  std::vector<PickleValue*> stack_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
  size_t marks_ = 0;
};

std::unique_ptr<const Pickle> read_pickle(std::string_view bytes, const std::string& name) {
  return PickleReader(bytes, name).read();
}

}  // namespace megalith::hf
