#!/usr/bin/env bash
# consumer_test.sh BUILD_DIR CXX: installs the built tree into a fresh folder, moves that folder, and builds and runs a tiny
# project against it. So neither the build tree nor the first install prefix can be what made it work.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build_dir=$1
cxx=$2
work=$build_dir/tests/package/consumer
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
if grep -rlF -e "$build_dir" -e "$work/first" "$work/moved" --include='*.cmake' | grep -v '/MegalithConfig.cmake'; then
  echo "the installed CMake files above name the build tree"
  exit 1
fi
cmake -G Ninja -S "$here/consumer" -B "$work/build" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/build"
output=$("$work/build/consumer")
echo "$output"
[ "$output" = "trained a step twice" ]
