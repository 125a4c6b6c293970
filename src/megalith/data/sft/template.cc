// Named templates, token for token as LLaMA-Factory applies them. A template is a set of texts with markers; each text
// is tokenized on its own, between token markers, because tokenizing the whole conversation at once could merge tokens
// across the borders of turns.
//
// Thoughts of reasoning models: with mask_history (only the last turn is trained), thoughts of earlier answers are
// removed, as the model's own chat template does at inference. An answer without a thought gets an empty one, which the
// model learns to write (Thinking::kOn) or finds in its prompt (otherwise).
#include "megalith/data/sft/template.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/sft/tool_format.h"
#include "megalith/io/json_reader.h"

namespace megalith::data {
namespace {

constexpr std::string_view kContentMark = "{{content}}";
constexpr std::string_view kBosMark = "{{bos}}";
constexpr std::string_view kEosMark = "{{eos}}";

// Returns `format` with the content inserted. The content is not scanned again, since it may contain markers.
std::string filled(std::string_view format, const std::string& content) {
  const size_t at = format.find(kContentMark);
  if (at == std::string_view::npos) return std::string(format);
  return std::string(format.substr(0, at)) + content + std::string(format.substr(at + kContentMark.size()));
}

// Part of the keys of caches: the words must not change.
const char* thinking_name(Thinking thinking) {
  switch (thinking) {
    case Thinking::kOn:
      return "on";
    case Thinking::kOff:
      return "off";
    case Thinking::kUnset:
      break;
  }
  return "unset";
}

}  // namespace

// The order of preference for the end token: the template's, the tokenizer's, <|endoftext|>, an error.
TemplateTokens template_tokens(const TemplateSpec& spec, const tokenizer::Tokenizer& tokenizer) {
  const auto need = [&](std::string_view token) {
    const auto id = tokenizer.id_of(token);
    check<ConfigError>(id.has_value(),
                       "template {} ends answers with {}, which the tokenizer does not have. Choose the template that "
                       "belongs to the model, or add the token to the tokenizer (add_special_tokens)",
                       spec.name, token);
    return *id;
  };
  TemplateTokens tokens;
  tokens.bos = tokenizer.bos_id();
  const auto own_eos = tokenizer.eos_id();
  tokens.eos = !spec.eos.empty() ? need(spec.eos) : own_eos ? *own_eos : need("<|endoftext|>");
  tokens.pad = tokenizer.pad_id().value_or(tokens.eos);  // harmless: padding has no label
  for (const std::string_view stop : spec.stops)
    if (const auto id = tokenizer.id_of(stop)) tokens.stops.push_back(*id);
  tokens.document_end = !spec.document_end.empty() ? std::string(spec.document_end)
                                                   : tokenizer.token_of(tokens.eos).value_or(std::string());
  return tokens;
}

TemplateTokens own_tokens(const tokenizer::Tokenizer& tokenizer) {
  TemplateTokens tokens{.bos = tokenizer.bos_id(), .eos = tokenizer.eos_id().value_or(0)};
  tokens.pad = tokenizer.pad_id().value_or(tokens.eos);
  if (tokenizer.eos_id()) tokens.document_end = tokenizer.token_of(tokens.eos).value_or(std::string());
  return tokens;
}

bool adds_bos_token(const std::filesystem::path& tokenizer_folder) {
  if (tokenizer_folder.empty()) return false;
  const std::filesystem::path path = tokenizer_folder / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return false;
  return io::read_json_file(path).fields().optional<bool>("add_bos_token").value_or(false);
}

Template::Template(std::string_view name, tokenizer::Tokenizer tokenizer, TemplateOptions options)
    : spec_(find_template(name)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      default_system_(options_.default_system ? *options_.default_system : spec_.default_system),
      tokens_(template_tokens(spec_, tokenizer_)) {}

// Part of the keys of caches: the words must not change.
std::string Template::description() const {
  return fmt::format("template {} system \"{}\" thinking {} preserve {}{}", spec_.name, default_system_,
                     thinking_name(options_.thinking), options_.preserve_thinking,
                     options_.split_special_tokens ? " special tokens split" : "");
}

// Appends the ids of a format: token markers become their ids, and the text between two markers is tokenized as one
// piece.
void Template::append(std::string_view format, const std::string& content, Ids& ids) const {
  const auto add_text = [&](std::string_view piece) {
    tokenizer::EncodeOptions how;
    if (const size_t at = piece.find(kContentMark); options_.split_special_tokens && at != std::string_view::npos)
      how.plain_begin = at, how.plain_end = at + content.size();
    const Ids added = tokenizer_.encode(filled(piece, content), how);
    ids.insert(ids.end(), added.begin(), added.end());
  };
  while (!format.empty()) {
    const size_t bos = format.find(kBosMark), eos = format.find(kEosMark);
    const size_t mark = std::min(bos, eos);
    if (mark > 0) add_text(format.substr(0, mark));
    if (mark == std::string_view::npos) return;
    if (mark == bos && tokens_.bos) ids.push_back(*tokens_.bos);
    if (mark == eos) ids.push_back(tokens_.eos);
    format.remove_prefix(mark + (mark == bos ? kBosMark.size() : kEosMark.size()));
  }
}

Template::Ids Template::encode_message(const Message& message, const std::string& system_text) const {
  Ids ids;
  switch (message.role) {
    case Role::kUser:
      append(spec_.user, system_text + message.content, ids);
      break;
    case Role::kAssistant:
      append(spec_.assistant, message.content, ids);
      break;
    case Role::kObservation:
      append(spec_.observation, message.content, ids);
      break;
    case Role::kFunction:
      append(spec_.assistant,
             function_calls_text(spec_.name, spec_.tools, message.content, spec_.thought_open, spec_.thought_close),
             ids);
      break;
  }
  return ids;
}

// Encodes each message. The first one also gets the prefix and the system text with the tools.
std::vector<Template::Ids> Template::encode_messages(const std::vector<Message>& messages,
                                                     const Conversation& conversation) const {
  const std::string& system = conversation.system.empty() ? default_system_ : conversation.system;
  std::vector<Ids> encoded;
  encoded.reserve(messages.size());
  for (const Message& message : messages) {
    Ids ids;
    std::string in_user;
    if (encoded.empty()) {
      append(spec_.prefix, {}, ids);
      if (!system.empty() || !conversation.tools.empty()) {
        const std::string content = system + tools_text(spec_.name, spec_.tools, conversation.tools);
        if (spec_.system_in_user)
          in_user = filled(spec_.system, content);
        else
          append(spec_.system, content, ids);
      }
    }
    const Ids own = encode_message(message, in_user);
    ids.insert(ids.end(), own.begin(), own.end());
    encoded.push_back(std::move(ids));
  }
  return encoded;
}

// Whether the content has neither mark of a thought; blanks around the marks do not count.
bool Template::without_thought(const std::string& content) const {
  return content.find(trim(spec_.thought_open)) == std::string::npos &&
         content.find(trim(spec_.thought_close)) == std::string::npos;
}

std::string Template::thought_removed(const std::string& content) const {
  return without_thoughts(content, spec_.thought_open, spec_.thought_close);
}

// Trained as part of the answer with thinking on; given as part of the prompt otherwise.
void Template::add_empty_thought(EncodedTurn& turn) const {
  const Ids thought = tokenizer_.encode(std::string(spec_.thought_open) + std::string(spec_.thought_close));
  if (options_.thinking == Thinking::kOn)
    turn.target.insert(turn.target.begin(), thought.begin(), thought.end());
  else
    turn.source.insert(turn.source.end(), thought.begin(), thought.end());
}

std::vector<EncodedTurn> Template::turns(const Conversation& conversation, bool last_turn_only) const {
  std::vector<Message> messages = conversation.prompt;
  messages.push_back(conversation.responses.at(0));
  // Odd messages are answers. Earlier ones lose their thoughts if they are not trained themselves; with thinking off,
  // all answers do.
  const bool strip_history = spec_.reasoning && last_turn_only && !options_.preserve_thinking;
  const bool strip_all = spec_.reasoning && options_.thinking == Thinking::kOff;
  for (size_t i = 1; i < messages.size(); i += 2)
    if (strip_all || (strip_history && i + 1 < messages.size()))
      messages[i].content = thought_removed(messages[i].content);
  std::vector<Ids> encoded = encode_messages(messages, conversation);
  std::vector<EncodedTurn> result;
  for (size_t i = 0; i + 1 < encoded.size(); i += 2) {
    EncodedTurn turn{std::move(encoded[i]), std::move(encoded[i + 1])};
    // An answer whose thought was just removed from the history gets no empty one either.
    const bool may_think = spec_.reasoning && (!strip_history || i + 2 == encoded.size());
    if (may_think && without_thought(messages[i + 1].content)) add_empty_thought(turn);
    result.push_back(std::move(turn));
  }
  return result;
}

// For preference pairs, which train only the answer: thoughts of all earlier turns are removed unless preserved.
EncodedTurn Template::answer(const Conversation& conversation, size_t response) const {
  std::vector<Message> messages = conversation.prompt;
  messages.push_back(conversation.responses.at(response));
  if (spec_.reasoning) {
    if (!options_.preserve_thinking)
      for (size_t i = 1; i + 1 < messages.size(); i += 2) messages[i].content = thought_removed(messages[i].content);
    if (options_.thinking == Thinking::kOff) messages.back().content = thought_removed(messages.back().content);
  }
  std::vector<Ids> encoded = encode_messages(messages, conversation);
  EncodedTurn turn;
  turn.target = std::move(encoded.back());
  encoded.pop_back();
  for (const Ids& ids : encoded) turn.source.insert(turn.source.end(), ids.begin(), ids.end());
  if (spec_.reasoning && without_thought(messages.back().content)) add_empty_thought(turn);
  return turn;
}

}  // namespace megalith::data
