// What the fuzzers of `hf` call, over their corpus and over mutations of it.
#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::hf {
namespace {

TEST(FuzzEntries, SafetensorsHeader) { testing::run_fuzz_corpus("safetensors_header", fuzz::safetensors_header); }
TEST(FuzzEntries, JsonConfig) { testing::run_fuzz_corpus("json_config", fuzz::json_config); }

}  // namespace
}  // namespace megalith::hf
