// Two ways from a conversation to ids share one interface: a named template knows the texts of each turn (Template),
// while the tokenizer's own Jinja template renders a conversation as a whole and marks what the assistant writes
// (RenderedTurnEncoder). The second is bound here to a tokenizer, a system text and the template's variables.
#include "megalith/data/sft/chat_encoder.h"

#include <ctime>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/data/sft/rendered_encoder.h"
#include "megalith/data/sft/template.h"
#include "megalith/data/sft/tool_format.h"
#include "megalith/tokenizer/chat/chat_template.h"

namespace megalith::data {
namespace {

using io::Json;
using tokenizer::ChatOptions;
using tokenizer::ChatTemplate;

constexpr std::string_view kThoughtOpen = "<think>";
constexpr std::string_view kThoughtClose = "</think>";

// Returns Friday, 26 July 2024.
std::tm template_date() {
  std::tm date{};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  return date;
}

// Variables of the Jinja template. One that is unset is not defined at all, since templates test for that.
ChatOptions chat_options(const TemplateOptions& told) {
  ChatOptions options{.now = template_date()};
  if (told.thinking != Thinking::kUnset) options.kwargs["enable_thinking"] = told.thinking == Thinking::kOn;
  if (told.preserve_thinking) options.kwargs["preserve_thinking"] = true;
  return options;
}

// Adds the default system text and removes thoughts, as the options say.
Json prepared(Json messages, const std::string& default_system, bool with_thoughts) {
  if (!default_system.empty() && messages.front().at("role") != "system")
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", default_system}});
  if (with_thoughts) return messages;
  for (Json& message : messages)
    if (message.at("role") == "assistant")
      message["content"] = without_thoughts(message["content"].get<std::string>(), kThoughtOpen, kThoughtClose);
  return messages;
}

// The description is part of cache keys. It holds what the user chose; the template itself is covered by the hash of
// the tokenizer's files.
std::shared_ptr<const TurnEncoder> own_template(const TemplateOptions& told, const tokenizer::Tokenizer& tokenizer,
                                                const std::filesystem::path& folder) {
  // A Jinja template has its own default for an absent system text; an empty one counts as absent.
  const std::string system = told.default_system ? *told.default_system : "";
  const bool with_thoughts = told.thinking != Thinking::kOff;
  ChatOptions options = chat_options(told);
  std::string description =
      fmt::format("the tokenizer's own template, system \"{}\" {}", system, options.kwargs.dump());
  auto render = [chat = ChatTemplate::from_folder(folder), tokenizer, system, with_thoughts,
                 options = std::move(options)](const Json& messages, const Json& tools) {
    const tokenizer::Conversation conversation{prepared(messages, system, with_thoughts), tools, {}};
    auto encoding = chat.apply(conversation, tokenizer, options);
    return RenderedConversation{std::move(encoding.ids), std::move(encoding.assistant_mask)};
  };
  return std::make_shared<RenderedTurnEncoder>(std::move(render), own_tokens(tokenizer), std::move(description));
}

}  // namespace

std::shared_ptr<const TurnEncoder> make_turn_encoder(const TemplateChoice& choice,
                                                     const tokenizer::Tokenizer& tokenizer,
                                                     const std::filesystem::path& folder) {
  if (!choice.is_own()) return std::make_shared<Template>(*choice.name, tokenizer, choice.options);
  if (!folder.empty() && ChatTemplate::is_in(folder)) {
    check<ConfigError>(!choice.options.split_special_tokens,
                       "split_special_tokens does not work with the tokenizer's own chat template, which does not tell "
                       "its own tokens from those in a text; name a template (for example --template qwen)");
    return own_template(choice.options, tokenizer, folder);
  }
  check<ConfigError>(
      !choice.name,
      "template is {}, and the tokenizer has no chat template: {}. Name one of the known templates (for "
      "example --template qwen), or put the model's chat_template.jinja there",
      kOwnTemplate,
      folder.empty() ? std::string("it was not read from a folder")
                     : "neither chat_template.jinja nor tokenizer_config.json of " + folder.string() + " holds one");
  return nullptr;
}

}  // namespace megalith::data
