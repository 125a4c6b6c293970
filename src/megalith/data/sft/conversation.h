// Conversation: one record of fine-tuning data as text, before tokenization.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/data/media_reference.h"

namespace megalith::data {

// The speaker of a turn. kObservation is the result of a tool, kFunction an assistant's call of tools.
enum class Role { kUser, kAssistant, kObservation, kFunction };

// One turn. `content` is text even for calls of tools, which are JSON text.
struct Message {
  Role role = Role::kUser;
  std::string content;
  bool operator==(const Message&) const = default;
};

// One record. Prompt turns alternate: even positions are kUser or kObservation, odd ones kAssistant or kFunction. The
// common form of all file formats; templates and chat encoders know nothing else.
struct Conversation {
  // An odd number of turns; the last is the one to answer. Stage pt: one turn, whose content is the text.
  std::vector<Message> prompt;
  std::vector<Message> responses;   // sft, kto: one; preference pairs: chosen, rejected; pt: none
  std::optional<bool> desirable{};  // kto: the verdict on the answer
  std::string system;
  std::string tools;  // JSON text; empty for none
  // In the order of the markers <image>, <video> and <audio> in the text. A video is a list of frames, or one source
  // with frame 0: a video file.
  std::vector<MediaSource> images;
  std::vector<std::vector<MediaSource>> videos;
  std::vector<MediaSource> sounds;

  bool has_media() const { return !images.empty() || !videos.empty() || !sounds.empty(); }
  bool operator==(const Conversation&) const = default;
};

}  // namespace megalith::data
