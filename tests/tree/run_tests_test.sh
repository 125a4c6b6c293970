#!/usr/bin/env bash
# scripts/run_tests.sh over a made-up CTest project: what it prints, in which order, and when it fails.
set -euo pipefail

run_tests=$1/scripts/run_tests.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset CTEST_PARALLEL_LEVEL CTEST_OUTPUT_ON_FAILURE

# project TEST_NAME COMMAND…, twice a test: name, shell command
project() {
  : >"$folder/CTestTestfile.cmake"
  while [ $# -gt 0 ]; do
    printf 'add_test(%s /bin/sh -c [==[%s]==])\nset_tests_properties(%s PROPERTIES SKIP_RETURN_CODE 77)\n' "$1" "$2" "$1" \
      >>"$folder/CTestTestfile.cmake"
    shift 2
  done
}
# run WANTED_EXIT_CODE
run() {
  local rc=0
  MEGALITH_ALLOWED_SKIPS=$folder/allowed "$run_tests" "$folder" >"$folder/out" 2>"$folder/err" || rc=$?
  if [ "$rc" -ne "$1" ]; then echo "exit code $rc instead of $1:"; cat "$folder/out" "$folder/err"; exit 1; fi
}
expect() { grep -qE -e "$1" "$folder/out" || { echo "not printed: $1"; cat "$folder/out"; exit 1; }; }
expect_summary_last() {
  tail -n 2 "$folder/out" | head -n 1 | grep -q 'tests passed, .* failed out of' && tail -n 1 "$folder/out" |
    grep -q '^Total Test time (real) = ' || { echo "the summary is not last:"; cat "$folder/out"; exit 1; }
}

gtest_skip='printf "[ RUN      ] A.B\nfile.cc:3: Skipped\nno second machine\n\n[  SKIPPED ] A.B (0 ms)\n"; exit 77'
echo 'net\..* needs a second machine' >"$folder/allowed"

project a.passes true net.skips "$gtest_skip"
run 0
expect 'net\.A\.B: no second machine \[allowed\]'
expect '100% tests passed, 0 tests failed out of 2'
expect_summary_last

project a.passes true other.skips "$gtest_skip" script.skips 'echo "SKIP: no tool"; exit 77'
run 1
expect 'other\.A\.B: no second machine \[NOT ALLOWED\]'
expect 'script\.skips: no tool \[NOT ALLOWED\]'
expect '2 skipped tests are not listed'
expect_summary_last

# A skip that nobody explains is told, too.
project a.passes true quiet.skips 'exit 77'
run 1
expect 'quiet\.skips: no reason given \[NOT ALLOWED\]'

# One test of a suite that passes.
project net.A "${gtest_skip% exit 77} true" other.A "${gtest_skip% exit 77} true"
run 1
expect 'net\.A\.B: no second machine \[allowed\]'
expect 'other\.A\.B: no second machine \[NOT ALLOWED\]'
expect '100% tests passed, 0 tests failed out of 2'
expect_summary_last

project a.passes true b.fails 'echo why it failed; false'
run 8
expect 'why it failed'
expect '50% tests passed, 1 tests failed out of 2'
expect 'b\.fails \(Failed\)'
expect_summary_last

# No test at all is no success.
project
run 8
