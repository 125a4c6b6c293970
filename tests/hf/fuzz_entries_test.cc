#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::hf {
namespace {

TEST(FuzzEntries, SafetensorsHeader) { testing::run_fuzz_entry("safetensors_header", fuzz::safetensors_header); }
TEST(FuzzEntries, Pickle) { testing::run_fuzz_entry("pickle", fuzz::pickle); }
TEST(FuzzEntries, JsonConfig) { testing::run_fuzz_entry("json_config", fuzz::json_config); }

}  // namespace
}  // namespace megalith::hf
