// The values of a pickle, as plain data. Objects stay descriptions of how Python would make them: the name of a class
// or function, its arguments and its state.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::hf {

// One value. Values refer to one another, perhaps in circles, and live as long as their Pickle.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,        // integer
    kInt,         // integer
    kFloat,       // number
    kText,        // text
    kBytes,       // text; also whole numbers beyond 64 bits, as their bytes
    kList,        // items
    kTuple,       // items
    kSet,         // items
    kDict,        // pairs
    kGlobal,      // text: "collections.OrderedDict"
    kObject,      // text: what makes it; args, state; items and pairs that were added to it
    kPersistent,  // args: what the file calls a storage by
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<const PickleValue*> items;
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs;
  const PickleValue* args = nullptr;
  const PickleValue* state = nullptr;

  bool is(Kind other) const { return kind == other; }
  // An object that this function or class makes.
  bool is_made_by(std::string_view global) const { return kind == Kind::kObject && text == global; }
  // A dict, or an object that is one (OrderedDict).
  bool is_dict() const;
  // Returns the value of a text key of a dict, or an attribute of an object; nullptr when there is none.
  const PickleValue* find(std::string_view key) const;
  // Returns the n-th of `items`, for an object of its arguments; nullptr when there are fewer.
  const PickleValue* at(size_t index) const;
};

// All values of one pickle.
class Pickle {
 public:
  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleReader;
  std::deque<PickleValue> values_;  // a deque keeps their addresses
  const PickleValue* root_ = nullptr;
};

}  // namespace megalith::hf
