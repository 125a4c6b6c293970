// A Jinja template, as chat templates of Hugging Face models are written in: parsed once, rendered any number of times.
//
// The language is that of jinja2 3.1 in transformers' ImmutableSandboxedEnvironment: trim_blocks and lstrip_blocks are
// on, break and continue are known, {% generation %} marks what an assistant writes, tojson prints as json.dumps with
// ensure_ascii=False, raise_exception, strftime_now, namespace, dict, range, cycler and joiner are the global
// functions. Not part of it, and refused by name: include, import, extends and block, for a chat template has no other
// files.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::tokenizer::jinja {

// What one rendering may spend; a template comes from other people.
struct Limits {
  size_t steps = 20'000'000;              // expressions, statements and elements that are looked at
  size_t bytes = size_t{1} << 30;         // of all values and texts that are made on the way
  size_t output_bytes = size_t{1} << 28;  // of the text
  int depth = 400;                        // of expressions, blocks and macros in one another
};

struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // what strftime_now prints; none: the local time
};

struct Rendered {
  std::string text;
  // What stands in {% generation %} blocks, as [begin, end) in bytes of the text.
  std::vector<std::pair<size_t, size_t>> generation;
};

struct Tree;

// Immutable: any number of threads may render at the same time. Copies share everything.
class Template {
 public:
  // `name` stands for the template in messages. Throws DataError: name, line and what was expected.
  Template(std::string_view source, std::string name);

  // `variables`: an object of names and values. Throws DataError for what the template does wrong and for what it
  // refuses (raise_exception), naming the line.
  Rendered render(const nlohmann::ordered_json& variables, const RenderOptions& options = {}) const;

  // Whether it has {% generation %} blocks.
  bool marks_generation() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace megalith::tokenizer::jinja
