// The fuzzers' entry points over their corpus and over mutations of it: every build checks what `make fuzz` explores.
#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/mutations.h"

namespace megalith::hf {
namespace {

TEST(FuzzEntries, SafetensorsHeader) { testing::run_mutations("safetensors_header", fuzz::safetensors_header); }
TEST(FuzzEntries, JsonConfig) { testing::run_mutations("json_config", fuzz::json_config); }

}  // namespace
}  // namespace megalith::hf
