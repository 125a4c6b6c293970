#include "megalith/data/sft/rendered_encoder.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

using hf::Json;

Json openai_message(const Message& message) {
  switch (message.role) {
    case Role::kUser:
      return {{"role", "user"}, {"content", message.content}};
    case Role::kAssistant:
      return {{"role", "assistant"}, {"content", message.content}};
    case Role::kObservation:
      return {{"role", "tool"}, {"content", message.content}};
    case Role::kFunction:
      break;
  }
  const Json value = hf::parse_json(message.content, "function message");
  Json calls = Json::array();
  for (const Json& call : value.is_array() ? value : Json::array({value}))
    calls.push_back({{"type", "function"}, {"function", call}});
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}};
}

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
  for (const Message& message : conversation.prompt) messages.push_back(openai_message(message));
  messages.push_back(openai_message(conversation.responses.at(response)));
  return messages;
}

RenderedTurnEncoder::RenderedTurnEncoder(RenderConversation render, TemplateTokens tokens, std::string description)
    : render_(std::move(render)), tokens_(std::move(tokens)), description_(std::move(description)) {}

std::vector<EncodedTurn> RenderedTurnEncoder::turns(const Conversation& conversation, bool /*last_turn_only*/) const {
  const Json tools = conversation.tools.empty() ? Json() : hf::parse_json(conversation.tools, "tools");
  return split_by_mask(render_(openai_messages(conversation, 0), tools));
}

EncodedTurn RenderedTurnEncoder::answer(const Conversation& conversation, size_t response) const {
  const Json tools = conversation.tools.empty() ? Json() : hf::parse_json(conversation.tools, "tools");
  std::vector<EncodedTurn> turns = split_by_mask(render_(openai_messages(conversation, response), tools));
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
