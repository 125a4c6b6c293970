#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::optim {
namespace {

TEST(FuzzEntries, SchedulerState) { testing::run_fuzz_entry("scheduler_state", fuzz::scheduler_state); }
TEST(FuzzEntries, GradScalerState) { testing::run_fuzz_entry("grad_scaler_state", fuzz::grad_scaler_state); }

}  // namespace
}  // namespace megalith::optim
