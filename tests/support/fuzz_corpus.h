// The fuzzers' entry points (fuzz/entries.h) in a test: every build checks a little of what `make fuzz` explores.
#pragma once

#include <string>
#include <string_view>

namespace megalith::testing {

// Calls `entry` with each seed in fuzz/corpus/NAME and with thousands of mutations of them, the same in every run. What
// it throws fails the test and shows the input.
void run_fuzz_entry(const std::string& name, void (*entry)(std::string_view));

}  // namespace megalith::testing
