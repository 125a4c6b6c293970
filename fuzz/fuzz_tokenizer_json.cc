#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/tokenizer/text/utf8.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::fuzz {

void tokenizer_json(std::string_view input) {
  constexpr size_t kMaxBytes = size_t{1} << 16;  // more is time, not news
  if (input.size() > kMaxBytes) return;
  try {
    const auto tokenizer = tokenizer::Tokenizer::from_json(input, "tokenizer.json");
    for (const std::string_view text : {"", "a b", " Hello, wörld 12\n", "漢字 😀 e\u0301 <s>a</s>", "aaaaaaaaaa"}) {
      const auto ids = tokenizer.encode(text, {.add_special_tokens = true});
      for (const int32_t id : ids) check(id >= 0 && id < tokenizer.id_end(), "id {} is out of range", id);
      const std::string decoded = tokenizer.decode(ids);
      check(!tokenizer::first_invalid_utf8(decoded), "decoded text is not valid UTF-8");
      tokenizer::Tokenizer::StreamDecoder stream(tokenizer, {.skip_special_tokens = true});
      for (const int32_t id : ids) check(!tokenizer::first_invalid_utf8(stream.push(id)), "a character was cut");
      stream.finish();
    }
  } catch (const DataError&) {  // the answer to a bad file, and to a text that it cannot encode
  }
}

}  // namespace megalith::fuzz
