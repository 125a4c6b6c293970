// The tokens around an encoded text. All post-processors reduce to two lists, ids before and ids after it, because only
// single sequences are encoded here: "<s> $A </s>" -> before {1}, after {2}.
#include "megalith/tokenizer/steps/post_processor_internal.h"

#include <functional>

#include "megalith/tokenizer/steps/component_internal.h"

namespace megalith::tokenizer {

namespace {

// {"SpecialToken": {"id": "<s>"}} stands for the ids of special_tokens["<s>"].
std::vector<int32_t> read_special(const JsonNode& piece, const JsonNode& tokens) {
  const JsonNode name = piece.at("id");
  const auto entry = tokens.find(name.string());
  if (!entry) name.fail(fmt::format("is \"{}\", which special_tokens does not have", name.string()));
  const JsonNode list = entry->at("ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.array_size(); ++i) ids.push_back(static_cast<int32_t>(list.at(i).integer(0, INT32_MAX)));
  return ids;
}

// A template such as [CLS] $A [SEP]; only single sequences are supported.
PostProcessor read_template_processor(const JsonNode& node) {
  PostProcessor result;
  const JsonNode pieces = node.at("single");
  bool seen = false;
  for (size_t i = 0; i < pieces.array_size(); ++i) {
    const JsonNode piece = pieces.at(i);
    if (const auto special = piece.find("SpecialToken")) {
      for (const int32_t id : read_special(*special, node.at("special_tokens")))
        (seen ? result.after : result.before).push_back(id);
    } else {
      const JsonNode sequence = piece.at("Sequence");
      if (seen || sequence.at("id").string() != "A")
        sequence.fail("is a second sequence; \"single\" must have \"A\" once");
      seen = true;
    }
  }
  if (!seen) pieces.fail("has no {\"Sequence\": {\"id\": \"A\"}}");
  return result;
}

// cls and sep are pairs [token, id].
PostProcessor read_bert_processor(const JsonNode& node) {
  const auto id = [&](const char* name) { return static_cast<int32_t>(node.at(name).at(1).integer(0, INT32_MAX)); };
  return {{id("cls")}, {id("sep")}};
}

// ByteLevel only trims offsets, which are not kept here.
PostProcessor read_byte_level_processor(const JsonNode&) { return {}; }

PostProcessor read_any(const JsonNode& node);

// Each processor puts its tokens around what the earlier ones made.
PostProcessor read_sequence_processor(const JsonNode& node) {
  PostProcessor result;
  const JsonNode list = node.at("processors");
  for (size_t i = 0; i < list.array_size(); ++i) {
    const PostProcessor outer = read_any(list.at(i));
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

PostProcessor read_any(const JsonNode& node) {
  return read_component<PostProcessor>(node, "post-processor",
                                       {{"TemplateProcessing", read_template_processor},
                                        {"ByteLevel", read_byte_level_processor},
                                        {"Sequence", read_sequence_processor},
                                        {"BertProcessing", read_bert_processor},
                                        {"RobertaProcessing", read_bert_processor}});
}

}  // namespace

// Ids are checked against the vocabulary now, not when a text is encoded.
PostProcessor read_post_processor(const JsonNode& node, int64_t id_end) {
  PostProcessor result = read_any(node);
  for (const auto* ids : {&result.before, &result.after})
    for (const int32_t id : *ids)
      if (id >= id_end) node.fail(fmt::format("adds token {}, but the vocabulary ends at {}", id, id_end - 1));
  return result;
}

}  // namespace megalith::tokenizer
