// The main program of every test binary: gtest's, and exit code 77 when every test that ran was skipped. CTest then
// counts a skipped suite as skipped, and one with a failure and a skip as failed. A filter that no test matches is a
// failure.
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const auto& tests = *::testing::UnitTest::GetInstance();
  if (tests.test_to_run_count() == 0 && !GTEST_FLAG_GET(list_tests)) {
    std::fprintf(stderr, "no test matches --gtest_filter=%s\n", GTEST_FLAG_GET(filter).c_str());
    return 1;
  }
  const bool all_skipped = tests.skipped_test_count() > 0 && tests.skipped_test_count() == tests.test_to_run_count();
  return failed == 0 && all_skipped ? kSkipped : failed;
}
