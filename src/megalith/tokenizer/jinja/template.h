// Template: the Jinja language in which chat templates of Hugging Face models are written; parsed once, rendered any
// number of times.
//
// The language is that of jinja2 3.1 in transformers' ImmutableSandboxedEnvironment: trim_blocks and lstrip_blocks are
// on, break and continue exist, {% generation %} marks what an assistant writes, and tojson prints like json.dumps with
// ensure_ascii=False. The global functions are raise_exception, strftime_now, namespace, dict, range, cycler and
// joiner. include, import, extends and block are refused by name: a chat template has no other files.
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

// The budget of one rendering; templates come from other people.
struct Limits {
  size_t steps = 20'000'000;              // expressions, statements and elements visited
  size_t bytes = size_t{1} << 30;         // total size of all intermediate values and texts
  size_t output_bytes = size_t{1} << 28;  // size of the resulting text
  // The evaluator recurses on the C++ stack, which this limit protects.
  int depth = 400;  // nesting of expressions, blocks and macros
};

// How a template is rendered.
struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // the time for strftime_now; std::nullopt: the local time
};

// The result of a rendering.
struct Rendered {
  std::string text;
  // The {% generation %} blocks, as [begin, end) in bytes of the text.
  std::vector<std::pair<size_t, size_t>> generation;
};

struct Tree;

// Immutable: any number of threads may render at the same time. Copies share all data.
class Template {
 public:
  // `name` is the template's name in messages. Throws DataError with name, line and what was expected.
  Template(std::string_view source, std::string name);

  // Renders with `variables`, an object of names and values. Throws DataError, naming the line, for errors of the
  // template and for its own refusals (raise_exception).
  Rendered render(const nlohmann::ordered_json& variables, const RenderOptions& options = {}) const;

  // Returns whether it has {% generation %} blocks.
  bool marks_generation() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace megalith::tokenizer::jinja
