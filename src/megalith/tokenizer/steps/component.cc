// {"String": "x"} or {"Regex": "…"}: the two ways in which tokenizer.json writes a pattern.
#include "megalith/tokenizer/steps/component_internal.h"

namespace megalith::tokenizer {

Pattern read_pattern(const JsonNode& node) {
  if (const auto text = node.find("String")) {
    std::string literal = text->string();
    if (literal.empty()) text->fail("is empty; there is nothing to look for");
    return Pattern::literal(std::move(literal));
  }
  if (const auto regex = node.find("Regex")) return Pattern::regex(Regex(regex->string(), regex->where()));
  node.fail("has neither \"String\" nor \"Regex\"");
}

}  // namespace megalith::tokenizer
