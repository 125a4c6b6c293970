// A conversation as fine-tuning data describes it, before any token.
#pragma once

#include <string>
#include <vector>

namespace megalith::data {

enum class Role { kUser, kAssistant, kObservation, kFunction };

struct Message {
  Role role = Role::kUser;
  std::string content;
  bool operator==(const Message&) const = default;
};

// One record. Prompt turns alternate: even positions are kUser or kObservation, odd ones kAssistant or kFunction.
struct Conversation {
  std::vector<Message>
      prompt;  // ends with the turn that is answered: an odd number; pt: one, whose content is the text
  std::vector<Message> responses;  // sft: one; preference pairs: chosen, rejected; pt: none
  std::string system;
  std::string tools;  // JSON text, or nothing
  bool operator==(const Conversation&) const = default;
};

}  // namespace megalith::data
