// Replaces sentencepiece.cc in a build without the library.
#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

Tokenizer::Parts read_sentencepiece(const std::filesystem::path& file) {
  throw ConfigError(
      fmt::format("{}: this build has no SentencePiece, which this tokenizer needs. Install it (Debian: "
                  "libsentencepiece-dev) and build "
                  "again, or use a folder with a tokenizer.json.",
                  file.string()));
}

}  // namespace megalith::tokenizer
