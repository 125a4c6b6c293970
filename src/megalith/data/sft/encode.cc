// LLaMA-Factory's rules for labels and cuts, token for token. Turns are taken in order (from the last, with
// mask_history) until the cutoff is reached; the turn that crosses it is cut in both parts, and all further ones are
// dropped. Labels stand beside their tokens here; the collator shifts them.
#include "megalith/data/sft/encode.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

using Ids = std::vector<int32_t>;

void append(Ids& to, const Ids& from) { to.insert(to.end(), from.begin(), from.end()); }

// Labels of tokens that are not trained.
Ids ignored(size_t count) { return Ids(count, kIgnoredLabel); }

// Returns a turn with its labels. `first` says that it is the first turn taken, which is the last one of the
// conversation under mask_history.
Sequence label_turn(EncodedTurn turn, bool first, const TurnEncoder& encoder, const EncodeSettings& settings) {
  Sequence part;
  if (settings.train_on_prompt) {
    part.labels = turn.source;
  } else {
    part.labels = ignored(turn.source.size());
    // With efficient_eos the first token of a turn takes the place of the end token of the previous answer, so the
    // label there is eos.
    if (encoder.efficient_eos() && !first && !part.labels.empty()) part.labels.front() = encoder.tokens().eos;
  }
  append(part.labels, settings.mask_history && !first ? ignored(turn.target.size()) : turn.target);
  part.ids = std::move(turn.source);
  append(part.ids, turn.target);
  return part;
}

// Only the answer has labels: DPO compares its probability, given the prompt.
Sequence preference_row(const Ids& prompt, const Ids& response) {
  Sequence row;
  row.ids = prompt;
  append(row.ids, response);
  row.labels = ignored(prompt.size());
  append(row.labels, response);
  return row;
}

// Whether the first `kept` of these ids lack a placeholder that the others have.
bool loses_medium(const Ids& ids, int64_t kept, const Ids& pads) {
  return !pads.empty() && std::find_first_of(ids.begin() + kept, ids.end(), pads.begin(), pads.end()) != ids.end();
}

// Sets the caller's flag if it wants to know.
void note(bool* cut, bool happened) {
  if (cut != nullptr && happened) *cut = true;
}

}  // namespace

// A short target is kept whole, a short source too; otherwise both parts share the limit in proportion.
TurnLengths cut_turn(int64_t source, int64_t target, int64_t limit) {
  int64_t most_target = 0;
  if (target * 2 < limit) {
    most_target = limit;
  } else if (source * 2 < limit) {
    most_target = limit - source;
  } else {
    // In double precision, as in Python: rounding differently would move a token.
    const double share = static_cast<double>(target) / static_cast<double>(source + target);
    most_target = static_cast<int64_t>(static_cast<double>(limit) * share);
  }
  const int64_t kept_target = std::min(most_target, target);
  return {std::min(std::max<int64_t>(limit - kept_target, 0), source), kept_target};
}

// With mask_history, turns are reversed, cut from the last one on, and reversed again.
Sequence encode_conversation(const Conversation& conversation, const TurnEncoder& encoder,
                             const EncodeSettings& settings, bool* cut) {
  check<ConfigError>(!(settings.train_on_prompt && encoder.efficient_eos()),
                     "train_on_prompt does not work with a template whose answers carry no end token ({}); choose "
                     "another template or leave train_on_prompt out",
                     encoder.description());
  std::vector<EncodedTurn> turns = encoder.turns(conversation, settings.mask_history);
  if (settings.mask_history) std::ranges::reverse(turns);
  std::vector<Sequence> parts;
  int64_t total = encoder.efficient_eos() ? 1 : 0;  // room for the end token below
  for (EncodedTurn& turn : turns) {
    if (total >= settings.cutoff) {
      note(cut, true);
      break;
    }
    const auto [source, target] = cut_turn(std::ssize(turn.source), std::ssize(turn.target), settings.cutoff - total);
    note(cut, source < std::ssize(turn.source) || target < std::ssize(turn.target));
    if (loses_medium(turn.source, source, settings.media_pads) ||
        loses_medium(turn.target, target, settings.media_pads))
      break;
    turn.source.resize(static_cast<size_t>(source));
    turn.target.resize(static_cast<size_t>(target));
    total += source + target;
    parts.push_back(label_turn(std::move(turn), parts.empty(), encoder, settings));
  }
  if (settings.mask_history) std::ranges::reverse(parts);
  Sequence row;
  for (const Sequence& part : parts) {
    append(row.ids, part.ids);
    append(row.labels, part.labels);
  }
  if (encoder.efficient_eos() && !row.ids.empty()) {
    row.ids.push_back(encoder.tokens().eos);
    row.labels.push_back(encoder.tokens().eos);
  }
  return row;
}

Sample encode_preference(const Conversation& conversation, const TurnEncoder& encoder, const EncodeSettings& settings,
                         bool* cut) {
  EncodedTurn chosen = encoder.answer(conversation, 0);
  Ids rejected = encoder.answer(conversation, 1).target;
  if (encoder.efficient_eos()) {
    chosen.target.push_back(encoder.tokens().eos);
    rejected.push_back(encoder.tokens().eos);
  }
  // Both answers are cut to the same length, so that the shared prompt is cut only once.
  const int64_t longest = std::max(std::ssize(chosen.target), std::ssize(rejected));
  const auto [source, target] = cut_turn(std::ssize(chosen.source), longest, settings.cutoff);
  note(cut, source < std::ssize(chosen.source) || target < longest);
  if (loses_medium(chosen.source, source, settings.media_pads)) return {Sequence{}, Sequence{}};
  const auto keep = [](Ids& ids, int64_t count) { ids.resize(std::min(ids.size(), static_cast<size_t>(count))); };
  keep(chosen.source, source);
  keep(chosen.target, target);
  keep(rejected, target);
  return {preference_row(chosen.source, chosen.target), preference_row(chosen.source, rejected)};
}

Sequence encode_answer(const Conversation& conversation, const TurnEncoder& encoder, const EncodeSettings& settings,
                       bool* cut) {
  EncodedTurn turn = encoder.answer(conversation, 0);
  if (encoder.efficient_eos()) turn.target.push_back(encoder.tokens().eos);
  const auto [source, target] = cut_turn(std::ssize(turn.source), std::ssize(turn.target), settings.cutoff);
  note(cut, source < std::ssize(turn.source) || target < std::ssize(turn.target));
  if (loses_medium(turn.source, source, settings.media_pads)) return {};
  turn.source.resize(static_cast<size_t>(source));
  turn.target.resize(static_cast<size_t>(target));
  return preference_row(turn.source, turn.target);
}

// The end of a document is text, not an id, so that it is tokenized together with the end of the document.
Sequence whole_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens) {
  Sequence document;
  document.ids =
      tokenizer.encode(text + tokens.document_end, {.plain_end = tokens.documents_are_plain ? text.size() : 0});
  document.labels = document.ids;
  return document;
}

Sequence encode_document(const std::string& text, const tokenizer::Tokenizer& tokenizer, const TemplateTokens& tokens,
                         int64_t cutoff, bool* cut) {
  Sequence row;
  if (tokens.documents_get_bos) row.ids.push_back(*tokens.bos);
  append(row.ids, whole_document(text, tokenizer, tokens).ids);
  note(cut, std::ssize(row.ids) > cutoff);
  row.ids.resize(std::min(row.ids.size(), static_cast<size_t>(cutoff)));
  row.labels = row.ids;
  return row;
}

// One long sequence, cut without regard to documents: the model sees their ends as tokens.
std::vector<Sequence> pack_documents(const std::vector<Sequence>& documents, const TemplateTokens& tokens,
                                     int64_t cutoff) {
  Sequence all;
  for (const Sequence& document : documents) {
    append(all.ids, document.ids);
    append(all.labels, document.labels);
  }
  std::vector<Sequence> rows;
  for (int64_t from = 0; std::ssize(all.ids) - from >= cutoff; from += cutoff) {
    const auto part = [&](const Ids& values) { return Ids(values.begin() + from, values.begin() + from + cutoff); };
    Sequence row{.ids = part(all.ids), .labels = part(all.labels)};
    if (tokens.documents_get_bos) row.ids.front() = row.labels.front() = *tokens.bos;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace megalith::data
