// The fuzzers' entry points over their corpus and over mutations of it: every build checks what `make fuzz` explores.
#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::tokenizer {
namespace {

TEST(FuzzEntries, ChatTemplate) { testing::run_fuzz_entry("chat_template", fuzz::chat_template); }
TEST(FuzzEntries, TokenizerJson) { testing::run_fuzz_entry("tokenizer_json", fuzz::tokenizer_json); }

}  // namespace
}  // namespace megalith::tokenizer
