// ChatTemplate: converts conversations to text and token ids by the chat template of a model folder.
//
//   const auto chat = ChatTemplate::from_folder(folder);
//   const auto tokenizer = Tokenizer::from_folder(folder);
//   const ChatEncoding sample =
//       chat.apply({.messages = Json::parse(R"([{"role": "user", "content": "Hi"}, …])")}, tokenizer);
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

// The input of a template.
struct Conversation {
  Json messages;   // a list of objects with role, content and whatever else the template knows
  Json tools;      // null for none, else a list of JSON schemas
  Json documents;  // null for none, else a list of objects
};

// How a conversation is rendered.
// As the arguments of apply_chat_template.
struct ChatOptions {
  bool add_generation_prompt = false;        // append the text that opens the assistant's answer
  Json kwargs = Json::object();              // further variables of the template: {"enable_thinking": false}
  std::optional<std::string> template_name;  // std::nullopt: tool_use if there are tools, else default
  std::optional<std::tm> now;                // for strftime_now; std::nullopt: the local time
};

// A rendered and tokenized conversation.
struct ChatEncoding {
  std::string text;
  std::vector<int32_t> ids;             // only special tokens that the template writes
  std::vector<uint8_t> assistant_mask;  // 1 for tokens that the assistant writes, which are trained
};

// A range of the text, in bytes, that belongs to an assistant message.
struct AssistantSpan {
  size_t message;  // number of the message; with {% generation %} blocks, the number of the block
  size_t begin, end;
};

// One assistant message as a sample of its own. A token that straddles the boundary belongs to the prompt.
struct ChatTurn {
  size_t message;
  std::vector<int32_t> prompt_ids;    // the messages before it, with the generation prompt
  std::vector<int32_t> response_ids;  // the rest of the template's text up to and with the message
};

// Immutable: all functions may be called from any number of threads. Copies share all data.
//
// Texts, ids and masks equal those of apply_chat_template in transformers 5. In particular, a message's reasoning is
// available as reasoning_content and as thinking, no matter whether it was given as reasoning_content, thinking or
// reasoning.
class ChatTemplate {
 public:
  // Reads chat_template.jinja and additional_chat_templates/*.jinja, or else the chat_template of tokenizer_config.json
  // (one text, or a list of named ones), and the special tokens that templates print. Throws DataError, naming file and
  // line, when there is no template or it does not parse.
  // Both files and tokenizer_config.json may exist; the files win.
  static ChatTemplate from_folder(const std::filesystem::path& folder);
  // Returns whether from_folder would find a template.
  static bool is_in(const std::filesystem::path& folder);
  // Returns the files of `folder` that contain only a template, ordered by name.
  static std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder);

  // Parses one template from memory; `name` is its name in messages, `special_tokens` become variables ("bos_token").
  ChatTemplate(std::string_view source, std::string name,
               const std::map<std::string, std::string>& special_tokens = {});

  // Returns the text of a conversation.
  std::string render(const Conversation& conversation, const ChatOptions& options = {}) const;

  // Encodes the whole conversation as one sample. A token is trained if its first character lies in an assistant
  // message; a token that straddles the beginning is not. If the template has {% generation %} blocks, every token with
  // a character in a block is trained.
  ChatEncoding apply(const Conversation& conversation, const Tokenizer& tokenizer,
                     const ChatOptions& options = {}) const;

  // Finds the assistant messages in `text`, the rendered conversation. Each begins where the rendering of the messages
  // before it ends, generation prompt included. It ends where the rendering of the messages up to it ends or, if the
  // template writes a message differently once others follow, before the special token that opens the next one. A
  // message that cannot be found this way is searched for by its content. Throws DataError, naming the message, when it
  // is not found.
  std::vector<AssistantSpan> assistant_spans(const Conversation& conversation, const std::string& text,
                                             const Tokenizer& tokenizer, const ChatOptions& options = {}) const;

  // Returns each assistant message as a sample of its own. Throws DataError when a response does not continue its
  // prompt.
  std::vector<ChatTurn> turns(const Conversation& conversation, const Tokenizer& tokenizer,
                              const ChatOptions& options = {}) const;

  // Returns the names of the templates; a single one is called "default".
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
