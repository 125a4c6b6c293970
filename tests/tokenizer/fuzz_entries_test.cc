// The fuzzers' entry points over their corpus and over mutations of it: every build checks what `make fuzz` explores.
#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/mutations.h"

namespace megalith::tokenizer {
namespace {

TEST(FuzzEntries, ChatTemplate) { testing::run_mutations("chat_template", fuzz::chat_template); }

}  // namespace
}  // namespace megalith::tokenizer
