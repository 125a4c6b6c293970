#include <set>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/hf/foreign/pickle_reader.h"
#include "megalith/hf/foreign/stored_zip.h"

namespace megalith::fuzz {
namespace {

// Visits every value once; they may refer to one another in circles.
void visit(const hf::PickleValue& root) {
  std::set<const hf::PickleValue*> seen;
  std::vector<const hf::PickleValue*> next{&root};
  const auto add = [&](const hf::PickleValue* value) {
    if (value && seen.insert(value).second) next.push_back(value);
  };
  while (!next.empty()) {
    const hf::PickleValue* value = next.back();
    next.pop_back();
    for (const hf::PickleValue* item : value->items) add(item);
    for (const auto& [key, item] : value->pairs) {
      check(key && item, "a pair without its values");
      add(key);
      add(item);
    }
    add(value->args);
    add(value->state);
    value->find("model");
    value->at(0);
  }
}

template <typename Body>
void expect_named(std::string_view name, Body&& body) {
  try {
    body();
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with(name), "a message that does not name the file");
  }
}

}  // namespace

void pickle(std::string_view input) {
  expect_named("fuzz.pkl: ", [&] { visit(hf::read_pickle(input, "fuzz.pkl")->root()); });
  expect_named("fuzz.zip: ", [&] {
    const hf::StoredZip zip(input, "fuzz.zip");
    for (const auto& [name, bytes] : zip.members())
      check(bytes.data() >= input.data() && bytes.data() + bytes.size() <= input.data() + input.size(),
            "a member outside of the archive");
  });
}

}  // namespace megalith::fuzz
