// The fuzzers' entry points (fuzz/entries.h) over their corpus and over mutations of it, with any compiler.
#pragma once

#include <string>
#include <string_view>

namespace megalith::testing {

using FuzzEntry = void (*)(std::string_view);

// Calls the entry with every seed in fuzz/corpus/`name` and with thousands of mutations of them; what it throws fails
// the test.
void run_mutations(const std::string& name, FuzzEntry entry);

}  // namespace megalith::testing
