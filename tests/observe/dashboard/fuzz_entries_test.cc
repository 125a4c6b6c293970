#include "fuzz/entries.h"

#include <gtest/gtest.h>

#include "tests/support/fuzz_corpus.h"

namespace megalith {
namespace {

TEST(FuzzEntries, MetricsLine) { testing::run_fuzz_entry("metrics_line", fuzz::metrics_line); }
TEST(FuzzEntries, HttpRequest) { testing::run_fuzz_entry("http_request", fuzz::http_request); }
TEST(FuzzEntries, TraceView) { testing::run_fuzz_entry("trace_view", fuzz::trace_view); }

}  // namespace
}  // namespace megalith
