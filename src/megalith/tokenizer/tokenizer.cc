// The steps of a tokenizer, in order:
//
//   text ─► added tokens (plain) ─► normalizer ─► added tokens (normalized) ─► pre-tokenizer ─► model ─► ids
//   ids  ─► tokens ─► decoder ─► text
//
// Impl is constant after construction and shared by all copies, so every function is safe to call from many threads.
// For decoders that work token by token on bytes, the bytes of all tokens are computed once; decoding is then
// concatenation.
#include "megalith/tokenizer/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/tokenizer/models/word_models_internal.h"
#include "megalith/tokenizer/text/utf8.h"
#include "megalith/tokenizer/tokenizer_impl_internal.h"

namespace megalith::tokenizer {

// ------------------------------------------------------------------------------------------------------------- loading

Tokenizer::Impl::Impl(Parts parts)
    : normalizer(std::move(parts.normalizer)),
      pre_tokenizer(std::move(parts.pre_tokenizer)),
      model(std::move(parts.model)),
      added(std::move(parts.added), normalizer.get(), parts.source),
      post_processor(std::move(parts.post_processor)),
      decoder(std::move(parts.decoder)),
      bos_id(parts.bos_id),
      eos_id(parts.eos_id),
      pad_id(parts.pad_id),
      unk_id(parts.unk_id),
      stop_ids(std::move(parts.stop_ids)) {
  // Ids may have gaps: `size` counts tokens, `id_end` bounds ids and so the rows of an embedding.
  id_end = model->id_end();
  size = static_cast<int32_t>(model->size());
  for (const AddedToken& token : added.all()) {
    id_end = std::max(id_end, token.id + 1);
    if (!model->token_of(token.id)) ++size;
  }
  if (eos_id) stop_ids.push_back(*eos_id);
  std::ranges::sort(stop_ids);
  const auto repeats = std::ranges::unique(stop_ids);
  stop_ids.erase(repeats.begin(), repeats.end());

  // tokenizers skips a token if the text that the decoder would get is the content of a special token.
  special.assign(static_cast<size_t>(id_end), false);
  for (const AddedToken& token : added.all()) {
    const AddedToken* shown = added.find(added.decoded(token.id));
    special[static_cast<size_t>(token.id)] = shown != nullptr && shown->special;
  }
  // 150,000 tokens are about 1 MB of bytes; a decoder would otherwise run for each token of each text.
  by_bytes = decoder && decoder->is_bytewise();
  for (int32_t id = 0; by_bytes && id < id_end; ++id) {
    if (const auto token = decoded_token(id)) bytes += decoder->bytes_of(*token);
    byte_ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
}

std::string_view Tokenizer::Impl::bytes_of(int32_t id) const {
  if (id < 0 || id >= id_end) return {};
  const size_t begin = id == 0 ? 0 : byte_ends[static_cast<size_t>(id) - 1];
  return std::string_view(bytes).substr(begin, byte_ends[static_cast<size_t>(id)] - begin);
}

std::optional<std::string_view> Tokenizer::Impl::decoded_token(int32_t id) const {
  if (added.find(id) != nullptr) return added.decoded(id);
  return model->token_of(id);
}

Tokenizer::Tokenizer(Parts parts) : impl_(std::make_shared<const Impl>(std::move(parts))) {}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  return Tokenizer(read_tokenizer_json(json, name));
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) { return Tokenizer(read_folder(folder)); }

// For tests and demonstrations without files: three special tokens after the 256 bytes.
Tokenizer Tokenizer::bytes() {
  Parts parts;
  parts.source = "the byte tokenizer";
  parts.model = std::make_unique<ByteModel>();
  parts.decoder = make_byte_decoder();
  for (const char* content : {"<|bos|>", "<|eos|>", "<|pad|>"})
    parts.add({.content = content, .special = true}, parts.source);
  parts.bos_id = parts.id_of("<|bos|>");
  parts.eos_id = parts.id_of("<|eos|>");
  parts.pad_id = parts.id_of("<|pad|>");
  parts.post_processor.before = {*parts.bos_id};
  return Tokenizer(std::move(parts));
}

// ------------------------------------------------------------------------------------------------------------ encoding

// Tokens that are searched for in normalized text cut it a second time here.
void Tokenizer::Impl::encode_text(std::string_view text, bool at_start, const EncodeOptions& options,
                                  std::vector<int32_t>& ids) const {
  std::string normalized;
  if (normalizer) {
    normalized = text;
    normalizer->apply(normalized);
    text = normalized;
  }
  // `starts` tells Metaspace whether the part is at the beginning of the whole text.
  const auto tokenize = [&](std::string_view part, bool starts) {
    Pieces pieces;
    pieces.reset(part, starts);
    if (pre_tokenizer) pre_tokenizer->apply(pieces);
    model->tokenize(pieces, ids);
  };
  if (!added.has(AddedTokens::Stage::kNormalized)) {
    tokenize(text, at_start);
    return;
  }
  const PlainBytes plain{0, options.special_tokens_in_text ? 0 : text.size()};
  for (const TextPart& part : added.split(text, AddedTokens::Stage::kNormalized, plain)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      tokenize(text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0);
    }
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const Impl& impl = *impl_;
  require_valid_utf8(text);
  std::vector<int32_t> ids;
  // Only a guess; most texts then need no second allocation.
  ids.reserve(text.size() / 3 + 4);  // about 3 bytes per token in English
  if (options.add_special_tokens) ids = impl.post_processor.before;
  const PlainBytes plain =
      options.special_tokens_in_text ? PlainBytes{options.plain_begin, options.plain_end} : PlainBytes{0, text.size()};
  for (const TextPart& part : impl.added.split(text, AddedTokens::Stage::kPlain, plain)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      // Normalizing moves the borders of the plain bytes, so that all of this part counts as plain if some of it does.
      const EncodeOptions within{.special_tokens_in_text = part.begin >= plain.end || part.end <= plain.begin};
      impl.encode_text(text.substr(part.begin, part.end - part.begin), part.begin == 0, within, ids);
    }
  }
  if (options.add_special_tokens)
    ids.insert(ids.end(), impl.post_processor.after.begin(), impl.post_processor.after.end());
  return ids;
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(std::span<const std::string> texts,
                                                          const EncodeOptions& options, int threads) const {
  check<ConfigError>(threads >= 1, "encode_batch was given {} threads; at least 1 is needed", threads);
  std::vector<std::vector<int32_t>> result(texts.size());
  // Threads take texts one at a time from a shared counter. Of several errors the first text's is reported, so that the
  // result does not depend on timing.
  // Texts differ in length by orders of magnitude, so fixed shares would leave threads idle.
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = texts.size();  // the first text that failed, guarded by mutex
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < texts.size(); i = next++) {
      try {
        result[i] = encode(texts[i], options);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          error = std::current_exception();
        }
      }
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads && static_cast<size_t>(i) < texts.size(); ++i) others.emplace_back(work);
  work();
  others.clear();
  if (error) std::rethrow_exception(error);
  return result;
}

// ------------------------------------------------------------------------------------------------------------ decoding

// Bytewise decoders need no list of tokens: their bytes are concatenated and repaired once at the end.
std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  const Impl& impl = *impl_;
  std::string text;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (options.skip_special_tokens && is_special(id)) continue;
    if (impl.by_bytes) {
      text += impl.bytes_of(id);
    } else if (const auto token = impl.decoded_token(id)) {
      tokens.emplace_back(*token);
    }
  }
  if (impl.by_bytes) return replace_invalid_utf8(text);
  if (impl.decoder) {
    impl.decoder->apply(tokens);
    for (const std::string& token : tokens) text += token;
  } else {
    for (const std::string& token : tokens) text += (text.empty() ? "" : " ") + token;
  }
  return text;
}

// ------------------------------------------------------------------------------------------------------------- lookups

int32_t Tokenizer::vocab_size() const { return impl_->size; }
int32_t Tokenizer::id_end() const { return impl_->id_end; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const AddedToken* found = impl_->added.find(token);
  return found != nullptr ? found->id : impl_->model->id_of(token);
}

std::optional<std::string> Tokenizer::token_of(int32_t id) const {
  if (const AddedToken* found = impl_->added.find(id)) return found->content;
  const auto token = impl_->model->token_of(id);
  return token ? std::optional(std::string(*token)) : std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() && impl_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return impl_->unk_id; }
const std::vector<int32_t>& Tokenizer::stop_ids() const { return impl_->stop_ids; }

Tokenizer::StreamDecoder::StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options) {}

std::string Tokenizer::StreamDecoder::push(int32_t id) {
  if (options_.skip_special_tokens && tokenizer_.is_special(id)) return {};
  return tokenizer_.impl_->by_bytes ? push_bytes(id) : push_tokens(id);
}

// Holds back at most three bytes, those of a character that is not complete yet.
std::string Tokenizer::StreamDecoder::push_bytes(int32_t id) {
  held_ += tokenizer_.impl_->bytes_of(id);
  // Bytes that cannot become a character any more are replaced at once; only an unfinished end waits.
  const size_t finished = finished_utf8_bytes(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, finished));
  held_.erase(0, finished);
  return text;
}

// Decodes the ids of the latest text together with the new one: a decoder may look at the neighbors of a token (a
// leading space is kept only after another token), but no further back. The same method as tokenizers' DecodeStream.
std::string Tokenizer::StreamDecoder::push_tokens(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_, options_);
  // Nothing new, or a character that may still be completed.
  if (text.size() <= given_.size() || text.ends_with(kReplacementCharacter)) return {};
  std::string fresh = text.starts_with(given_) ? text.substr(given_.size()) : text;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(settled_));
  settled_ = ids_.size();
  given_ = tokenizer_.decode(ids_, options_);
  return fresh;
}

std::string Tokenizer::StreamDecoder::finish() {
  std::string text;
  if (tokenizer_.impl_->by_bytes) {
    text = replace_invalid_utf8(held_);
  } else if (settled_ < ids_.size()) {
    const std::string all = tokenizer_.decode(ids_, options_);
    text = all.starts_with(given_) ? all.substr(given_.size()) : all;
  }
  held_.clear();
  ids_.clear();
  given_.clear();
  settled_ = 0;
  return text;
}

}  // namespace megalith::tokenizer
