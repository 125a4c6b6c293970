// The fuzzers' entry points over their corpus and over mutations of it: every build checks what `make fuzz` explores.
#pragma once

#include <string>
#include <string_view>

namespace megalith::testing {

// Calls `entry` with every seed in fuzz/corpus/<name> and with thousands of mutations; whatever it throws fails the
// test.
void run_fuzz_corpus(const std::string& name, void (*entry)(std::string_view));

}  // namespace megalith::testing
