// Reads tokenizer.model with the SentencePiece library, which normalizes, cuts and tokenizes by itself; only control
// tokens are handled here, as added tokens.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_set>

#include "megalith/base/error.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

namespace {

using Processor = sentencepiece::SentencePieceProcessor;
constexpr std::string_view kBlank = "\u2581";  // stands for a space in pieces

// The library does everything; its const functions may be called by several threads.
class SentencePieceModel final : public Model {
 public:
  explicit SentencePieceModel(std::shared_ptr<const Processor> processor) : processor_(std::move(processor)) {}

  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override {
    std::vector<int> result;
    for (const Span& span : pieces.spans()) {
      const auto status = processor_->Encode(pieces.view(span), &result);
      check<DataError>(status.ok(), "SentencePiece: {}", status.ToString());
      ids.insert(ids.end(), result.begin(), result.end());
    }
  }
  // PieceToId returns the unknown token's id for what it does not know, hence the comparison.
  std::optional<int32_t> id_of(std::string_view token) const override {
    const int id = processor_->PieceToId(token);
    if (id < 0 || id >= processor_->GetPieceSize() || processor_->IdToPiece(id) != token) return std::nullopt;
    return id;
  }
  std::optional<std::string_view> token_of(int32_t id) const override {
    if (id < 0 || id >= processor_->GetPieceSize()) return std::nullopt;
    return processor_->IdToPiece(id);
  }
  size_t size() const override { return static_cast<size_t>(processor_->GetPieceSize()); }
  int32_t id_end() const override { return processor_->GetPieceSize(); }

 private:
  std::shared_ptr<const Processor> processor_;
};

// How often `unit` is repeated at the start of the text.
size_t count_prefix(std::string_view text, std::string_view unit) {
  size_t count = 0;
  for (; text.starts_with(unit); text.remove_prefix(unit.size())) ++count;
  return count;
}

// Control tokens are text; the pieces between them are decoded by SentencePiece.
class SentencePieceDecoder final : public Decoder {
 public:
  SentencePieceDecoder(std::shared_ptr<const Processor> processor, std::unordered_set<std::string> controls)
      : processor_(std::move(processor)), controls_(std::move(controls)) {}

  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    std::vector<std::string> run;
    for (std::string& token : tokens) {
      if (controls_.contains(token) || !is_piece(token)) {
        append_run(run, text);
        text += token;
      } else {
        run.push_back(std::move(token));
      }
    }
    append_run(run, text);
    tokens.assign(1, std::move(text));
  }

 private:
  // Added tokens from other files are not SentencePiece's, and are text like control tokens.
  bool is_piece(const std::string& token) const {
    const int id = processor_->PieceToId(token);
    return id >= 0 && id < processor_->GetPieceSize() && processor_->IdToPiece(id) == token;
  }

  // SentencePiece drops the space that it put before a text. After a control token that space was visible, so it is
  // restored.
  void append_run(std::vector<std::string>& run, std::string& text) const {
    if (run.empty()) return;
    std::string decoded;
    const auto status = processor_->Decode(run, &decoded);
    check<DataError>(status.ok(), "SentencePiece: {}", status.ToString());
    if (!text.empty()) {
      std::string joined;
      for (const std::string& piece : run) joined += piece;
      const size_t blanks = count_prefix(joined, kBlank), kept = count_prefix(decoded, " ");
      if (blanks > kept) text.append(blanks - kept, ' ');
    }
    text += decoded;
    run.clear();
  }

  std::shared_ptr<const Processor> processor_;
  std::unordered_set<std::string> controls_;
};

// From memory, so that a missing file has the same message as for other tokenizers.
std::shared_ptr<const Processor> load(const std::filesystem::path& file) {
  auto processor = std::make_shared<Processor>();
  const std::string content = read_file(file);
  const auto status = processor->LoadFromSerializedProto(content);
  check<DataError>(status.ok(), "{} is not a SentencePiece model: {}", file.string(), status.ToString());
  check<DataError>(processor->GetPieceSize() <= Vocabulary::kMaxIds, "{} has {} pieces; at most {} are supported",
                   file.string(), processor->GetPieceSize(), Vocabulary::kMaxIds);
  return processor;
}

std::optional<int32_t> known_id(int id) { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }

// BOS in front unless tokenizer_config.json says otherwise, EOS at the end only if it says so; for T5 the other way
// round.
PostProcessor added_around(const std::filesystem::path& folder, const Tokenizer::Parts& parts) {
  const auto path = folder / "tokenizer_config.json";
  nlohmann::json config = nlohmann::json::object();
  if (std::filesystem::exists(path)) config = parse_json(read_file(path), path.string());
  const JsonNode node(config, path.string());
  const bool t5 = node.string_or("tokenizer_class", "").starts_with("T5Tokenizer");
  PostProcessor result;
  if (parts.bos_id && node.boolean_or("add_bos_token", !t5)) result.before.push_back(*parts.bos_id);
  if (parts.eos_id && node.boolean_or("add_eos_token", t5)) result.after.push_back(*parts.eos_id);
  return result;
}

}  // namespace

// Control tokens and the unknown token become added tokens, so that they are found in texts and left out on request.
Tokenizer::Parts read_sentencepiece(const std::filesystem::path& file) {
  const std::shared_ptr<const Processor> processor = load(file);
  Tokenizer::Parts parts;
  parts.source = file.string();
  parts.model = std::make_unique<SentencePieceModel>(processor);
  std::unordered_set<std::string> controls;
  for (int id = 0; id < processor->GetPieceSize(); ++id) {
    if (!processor->IsControl(id) && !processor->IsUnknown(id)) continue;
    controls.insert(processor->IdToPiece(id));
    parts.add({.content = processor->IdToPiece(id), .id = id, .special = true}, parts.source);
  }
  parts.decoder = std::make_unique<SentencePieceDecoder>(processor, std::move(controls));
  parts.bos_id = known_id(processor->bos_id());
  parts.eos_id = known_id(processor->eos_id());
  parts.pad_id = known_id(processor->pad_id());
  parts.unk_id = known_id(processor->unk_id());
  parts.post_processor = added_around(file.parent_path(), parts);
  return parts;
}

}  // namespace megalith::tokenizer
