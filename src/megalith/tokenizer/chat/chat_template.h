// Conversations to text and token ids, as the chat template of a model folder says.
//
//   const auto chat = ChatTemplate::from_folder(folder);
//   const auto tokenizer = Tokenizer::from_folder(folder);
//   const ChatEncoding sample = chat.apply({.messages = Json::parse(R"([{"role": "user", "content": "Hi"}, …])")},
//   tokenizer);
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tokenizer/jinja/template.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tokenizer {

using Json = nlohmann::ordered_json;

// What a template is given.
struct Conversation {
  Json messages;   // a list of objects: role, content and whatever else the template knows
  Json tools;      // null: none; else a list of JSON schemas
  Json documents;  // null: none; else a list of objects
};

struct ChatOptions {
  bool add_generation_prompt = false;        // end with what opens the assistant's answer
  Json kwargs = Json::object();              // more variables for the template: {"enable_thinking": false}
  std::optional<std::string> template_name;  // of several; none: tool_use when there are tools, else default
  std::optional<std::tm> now;                // for strftime_now; none: the local time
};

struct ChatEncoding {
  std::string text;
  std::vector<int32_t> ids;             // no special tokens added to those of the template
  std::vector<uint8_t> assistant_mask;  // 1: a token that the assistant writes, and so is trained
};

// A part of the text, in bytes, that belongs to an assistant message.
struct AssistantSpan {
  size_t message;  // its number in the list; with {% generation %} blocks the block's number
  size_t begin, end;
};

// One assistant message as a sample of its own. A token that straddles the boundary belongs to the prompt.
struct ChatTurn {
  size_t message;
  std::vector<int32_t> prompt_ids;    // the messages before it, with the generation prompt
  std::vector<int32_t> response_ids;  // what the template writes for it behind that
};

// Immutable: all functions may be called from any number of threads. Copies share everything.
//
// Texts, ids and masks are those of apply_chat_template in transformers 5; in particular a message's reasoning is
// found under reasoning_content and thinking, whichever of reasoning_content, thinking and reasoning it was given as.
class ChatTemplate {
 public:
  // Reads chat_template.jinja and additional_chat_templates/*.jinja, or else the chat_template of tokenizer_config.json
  // (one text, or a list of named ones), and the special tokens that templates print. Throws DataError, naming file
  // and line, when there is none or it does not parse.
  static ChatTemplate from_folder(const std::filesystem::path& folder);
  // Whether from_folder would find one.
  static bool is_in(const std::filesystem::path& folder);
  // Those files of `folder` that hold nothing but a template, ordered by name.
  static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);

  // One template from memory; `name` stands for it in messages, `special_tokens` are variables ("bos_token").
  ChatTemplate(std::string_view source, std::string name,
               const std::map<std::string, std::string>& special_tokens = {});

  std::string render(const Conversation& conversation, const ChatOptions& options = {}) const;

  // The whole conversation as one sample. A token is trained when its first character lies in an assistant message; one
  // that straddles the beginning is not. With {% generation %} blocks in the template all tokens are that have a
  // character in a block.
  ChatEncoding apply(const Conversation& conversation, const Tokenizer& tokenizer,
                     const ChatOptions& options = {}) const;

  // Where the assistant messages of `text`, the rendered conversation, stand: each begins where the template of the
  // messages before it ends, generation prompt included. It ends where the template of the messages up to it ends or,
  // where the template writes a message differently once others follow, before the special token that opens the next
  // one. A message that cannot be found so is looked for by its content. Throws DataError, naming the message, when it
  // is not there.
  std::vector<AssistantSpan> assistant_spans(const Conversation& conversation, const std::string& text,
                                             const Tokenizer& tokenizer, const ChatOptions& options = {}) const;

  // Each assistant message as a sample of its own. Throws DataError when a response does not continue its prompt.
  std::vector<ChatTurn> turns(const Conversation& conversation, const Tokenizer& tokenizer,
                              const ChatOptions& options = {}) const;

  // The names of the templates; a single one is "default".
  std::vector<std::string> names() const;

 private:
  ChatTemplate() = default;
  const jinja::Template& choose(const Conversation& conversation, const ChatOptions& options) const;
  jinja::Rendered render_with_blocks(const Conversation& conversation, const ChatOptions& options) const;
  std::optional<size_t> span_end(const Conversation& until, const std::string& text, size_t begin,
                                 const Tokenizer& tokenizer, const ChatOptions& options) const;

  std::map<std::string, jinja::Template> templates_;
  Json special_tokens_ = Json::object();
  std::string source_;  // folder or name, for messages
};

}  // namespace megalith::tokenizer
