// A chat template of the tokenizer knows the format, and its generation marks tell which ids the assistant writes. So
// turns need not be known in advance: a run of marked ids is a target, everything before it since the last target its
// source.
#include "megalith/data/sft/rendered_encoder.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/data/sft/tool_format.h"

namespace megalith::data {
namespace {

using io::Json;

// Splits joined tool results into one message each.
void append_results(const std::string& joined, Json& messages) {
  for (size_t from = 0; from != std::string::npos;) {
    const size_t end = joined.find(kResultSeparator, from);
    messages.push_back({{"role", "tool"}, {"content", joined.substr(from, end - from)}});
    from = end == std::string::npos ? end : end + kResultSeparator.size();
  }
}

// A function message becomes an assistant message with tool_calls; a thought stays in its content.
Json calling_message(const std::string& content) {
  const TemplateSpec usual;  // for the default marks around a thought
  const auto [around, calls] = parse_function_calls(content, usual.thought_open, usual.thought_close);
  Json tool_calls = Json::array();
  for (const Json& call : calls) tool_calls.push_back({{"type", "function"}, {"function", call}});
  return {{"role", "assistant"}, {"content", around}, {"tool_calls", std::move(tool_calls)}};
}

// One message of ours may become several of OpenAI's: joined tool results are separate there.
void append_message(const Message& message, Json& messages) {
  switch (message.role) {
    case Role::kUser:
      messages.push_back({{"role", "user"}, {"content", message.content}});
      return;
    case Role::kAssistant:
      messages.push_back({{"role", "assistant"}, {"content", message.content}});
      return;
    case Role::kObservation:
      append_results(message.content, messages);
      return;
    case Role::kFunction:
      messages.push_back(calling_message(message.content));
      return;
  }
}

// Returns the list of tools; JSON null if there are none, since templates test for that.
Json tools_of(const Conversation& conversation) {
  Json tools = parse_tools(conversation.tools);
  return tools.empty() ? Json() : tools;
}

// Starts a new turn at every change from the assistant to someone else.
std::vector<EncodedTurn> split_by_mask(const RenderedConversation& rendered) {
  check(rendered.ids.size() == rendered.assistant_mask.size(), "{} ids with {} mask values", rendered.ids.size(),
        rendered.assistant_mask.size());
  std::vector<EncodedTurn> turns;
  bool answering = false;
  for (size_t i = 0; i < rendered.ids.size(); ++i) {
    const bool assistant = rendered.assistant_mask[i] != 0;
    if (turns.empty() || (answering && !assistant)) turns.emplace_back();
    answering = assistant;
    (assistant ? turns.back().target : turns.back().source).push_back(rendered.ids[i]);
  }
  if (!turns.empty() && turns.back().target.empty()) turns.pop_back();
  check<DataError>(!turns.empty(), "the chat template writes nothing for the assistant");
  return turns;
}

}  // namespace

Json openai_messages(const Conversation& conversation, size_t response) {
  Json messages = Json::array();
  if (!conversation.system.empty()) messages.push_back({{"role", "system"}, {"content", conversation.system}});
  for (const Message& message : conversation.prompt) append_message(message, messages);
  append_message(conversation.responses.at(response), messages);
  return messages;
}

RenderedTurnEncoder::RenderedTurnEncoder(RenderConversation render, TemplateTokens tokens, std::string description)
    : render_(std::move(render)), tokens_(std::move(tokens)), description_(std::move(description)) {}

std::vector<EncodedTurn> RenderedTurnEncoder::turns(const Conversation& conversation, bool /*last_turn_only*/) const {
  return split_by_mask(render_(openai_messages(conversation, 0), tools_of(conversation)));
}

// Joins all turns but the last answer into the source.
EncodedTurn RenderedTurnEncoder::answer(const Conversation& conversation, size_t response) const {
  std::vector<EncodedTurn> turns =
      split_by_mask(render_(openai_messages(conversation, response), tools_of(conversation)));
  EncodedTurn result;
  result.target = std::move(turns.back().target);
  turns.back().target.clear();
  for (const EncodedTurn& turn : turns) {
    result.source.insert(result.source.end(), turn.source.begin(), turn.source.end());
    result.source.insert(result.source.end(), turn.target.begin(), turn.target.end());
  }
  return result;
}

}  // namespace megalith::data
