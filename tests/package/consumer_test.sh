#!/usr/bin/env bash
# consumer_test.sh BUILD_DIR CXX: builds and runs a tiny project against the package that install_test.sh has left.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build_dir=$1
cxx=$2
work=$build_dir/tests/package
rm -rf "$work/consumer"
cmake -G Ninja -S "$here/consumer" -B "$work/consumer" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/consumer"
output=$("$work/consumer/consumer")
echo "$output"
[ "$output" = "trained a step twice" ]
