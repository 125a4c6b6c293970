// Finds the part of a rendered conversation that the assistant writes, for templates that do not mark it. The idea:
// render the conversation up to a message, with and without it; a template normally only appends, so the difference is
// the message. Templates that rewrite earlier messages (dropping old reasoning, for example) need the fallbacks.
#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/text/python_text.h"

namespace megalith::tokenizer {

namespace {

bool is_assistant(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() && role->get_ref<const std::string&>() == "assistant";
}

// Returns the first `count` messages.
Conversation beginning(const Conversation& conversation, size_t count) {
  Conversation result{Json::array(), conversation.tools, conversation.documents};
  for (size_t i = 0; i < count; ++i) result.messages.push_back(conversation.messages[i]);
  return result;
}

// Returns a message's content if it is one text, without surrounding whitespace.
std::string_view content_of(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return {};
  return strip(content->get_ref<const std::string&>(), std::nullopt, Side::kBoth);
}

bool calls_tools(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->empty();
}

// Finds `content` in `text`, not before `from`: first after the part that the text shares with the prompt, since
// earlier messages may contain the same words; then, since the prompt may be written differently, anywhere.
size_t find_content(const std::string& text, std::string_view content, size_t from, const std::string& prompt) {
  const auto shared = static_cast<size_t>(std::ranges::mismatch(text, prompt).in1 - text.begin());
  const size_t at = text.find(content, std::max(from, shared));
  return at == std::string::npos ? text.find(content, from) : at;
}

// Returns the result of `work`; std::nullopt if the template refuses a part of the conversation.
template <typename Work>
std::optional<std::string> unless_refused(const Work& work) {
  try {
    return work();
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

// Returns where the last message of `until`, which begins at `begin`, ends.
std::optional<size_t> ChatTemplate::span_end(const Conversation& until, const std::string& text, size_t begin,
                                             const Tokenizer& tokenizer, const ChatOptions& options) const {
  ChatOptions plain = options;
  plain.add_generation_prompt = false;
  const auto up_to = unless_refused([&] { return render(until, plain); });
  if (up_to && up_to->size() >= begin && text.starts_with(*up_to)) return up_to->size();
  // The token that opens a message is the first of the generation prompt.
  const Conversation before = beginning(until, until.messages.size() - 1);
  const auto closed = unless_refused([&] { return render(before, plain); });
  if (!closed || closed->size() >= begin || !text.starts_with(*closed)) return std::nullopt;
  const std::vector<int32_t> header =
      tokenizer.encode(std::string_view(text).substr(closed->size(), begin - closed->size()));
  if (header.empty() || !tokenizer.is_special(header[0])) return std::nullopt;
  const size_t next = text.find(tokenizer.token_of(header[0]).value_or(""), begin);
  return next == std::string::npos ? text.size() : next;
}

// Rendering once per assistant message makes this quadratic in the length of a conversation, which is short.
std::vector<AssistantSpan> ChatTemplate::assistant_spans(const Conversation& conversation, const std::string& text,
                                                         const Tokenizer& tokenizer, const ChatOptions& options) const {
  std::vector<AssistantSpan> spans;
  ChatOptions opened = options;
  opened.add_generation_prompt = true;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Json& message = conversation.messages[i];
    if (!is_assistant(message)) continue;
    // Spans do not overlap: a message is searched for after the one before it.
    const size_t from = spans.empty() ? 0 : spans.back().end;
    const auto prompt = unless_refused([&] { return render(beginning(conversation, i), opened); });
    const std::string_view content = content_of(message);
    size_t begin = prompt ? prompt->size() : 0;
    if (!prompt || begin < from || !text.starts_with(*prompt)) {
      if (content.empty() && !calls_tools(message)) continue;  // some templates write nothing for such a message
      begin = find_content(text, content, from, prompt.value_or(""));
      check<DataError>(!content.empty() && begin != std::string::npos,
                       "{}: the template writes the assistant's message {} in a way that cannot be found in the text; "
                       "mark what is trained with {{% generation %}} blocks in the template",
                       source_, i);
    }
    auto end = span_end(beginning(conversation, i + 1), text, begin, tokenizer, options);
    // Last resort: the content itself, without the token that ends the message.
    if (!end) {
      const size_t at = text.find(content, begin);
      end = at == std::string::npos ? begin : at + content.size();
    }
    spans.push_back({i, begin, *end});
  }
  return spans;
}

std::vector<ChatTurn> ChatTemplate::turns(const Conversation& conversation, const Tokenizer& tokenizer,
                                          const ChatOptions& options) const {
  std::vector<ChatTurn> result;
  ChatOptions opened = options, closed = options;
  opened.add_generation_prompt = true;
  closed.add_generation_prompt = false;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (!is_assistant(conversation.messages[i])) continue;
    const std::string prompt = render(beginning(conversation, i), opened);
    const std::string text = render(beginning(conversation, i + 1), closed);
    check<DataError>(text.starts_with(prompt),
                     "{}: with the assistant's message {} the template does not continue the prompt before it, so it "
                     "cannot be a sample of its own; train whole conversations",
                     source_, i);
    // A token that straddles the boundary starts before it, and so belongs to the prompt.
    const TokenizedText tokens = tokenizer.encode_with_starts(text);
    const auto response = std::ranges::lower_bound(tokens.starts, prompt.size()) - tokens.starts.begin();
    const auto cut = tokens.ids.begin() + response;
    result.push_back({i, {tokens.ids.begin(), cut}, {cut, tokens.ids.end()}});
  }
  return result;
}

}  // namespace megalith::tokenizer
