#include "megalith/tokenizer/text/utf8.h"
#include "megalith/tokenizer/tokenizer_impl_internal.h"

namespace megalith::tokenizer {

Tokenizer::StreamDecoder::StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options) {}

std::string Tokenizer::StreamDecoder::push(int32_t id) {
  if (options_.skip_special_tokens && tokenizer_.is_special(id)) return {};
  return tokenizer_.impl_->by_bytes ? push_bytes(id) : push_tokens(id);
}

std::string Tokenizer::StreamDecoder::push_bytes(int32_t id) {
  held_ += tokenizer_.impl_->bytes_of(id);
  const size_t finished = finished_utf8_bytes(held_);
  std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, finished));
  held_.erase(0, finished);
  return text;
}

// Decodes the ids of the latest text together with the new one: a decoder may look at a token's neighbours (a leading
// blank is kept behind another token only), but no further back. The same way as tokenizers' DecodeStream.
std::string Tokenizer::StreamDecoder::push_tokens(int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_, options_);
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
