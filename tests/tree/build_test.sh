#!/usr/bin/env bash
# build_test.sh ROOT CXX CMAKE: scripts/build.sh on a small project: what it says of a first build, of one with nothing to do, of a
# source that changed, and of one that does not compile.
set -euo pipefail

root=$1
export CXX=$2 PATH=${3%/*}:$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset CI NINJA_STATUS MEGALITH_DEPS_DIR TORCH_DIR
mkdir -p "$folder/scripts" "$folder/pages" "$folder/.deps/torch"
cp "$root"/scripts/{build,gpu,progress,find_compiler}.sh "$folder/scripts/"
cd "$folder"
cat >CMakePresets.json <<'END'
{"version": 6, "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}]}
END
# A glob that is looked at in every build, as in tests/docs.
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(Small LANGUAGES CXX)
message(STATUS "Without something: a part is missing")
file(GLOB pages CONFIGURE_DEPENDS pages/*)
add_library(part STATIC part.cc)
add_executable(small main.cc)
target_link_libraries(small part)
END
echo 'int part() { return 0; }' >part.cc
echo 'int part(); int main() { return part(); }' >main.cc

# build EXIT_CODE [arguments of build.sh]
build() {
  local wanted=$1 code=0
  shift
  PROGRESS_INTERVAL=0 scripts/build.sh release "$@" >out 2>&1 || code=$?
  [ $code -eq "$wanted" ] || { echo "exit code $code instead of $wanted:"; cat out; exit 1; }
}
# prints LINE…: among others. only: and no line of CMake's or ninja's own.
prints() {
  local line
  for line in "$@"; do grep -qxE -e "$line" out || { echo "not printed: $line; but:"; cat out; exit 1; }; done
  if grep -E '^@step|^\[[0-9]+/|no work to do|^-- (Conf|Det)' out; then echo "printed what is of no use:"; cat out; exit 1; fi
}

build 0
prints 'build: configuring release' '-- Without something: a part is missing' 'build: 2 units to compile on [0-9]+ cores?, .*' \
  'build: compiling 2 of 2, .* left' 'build: compiled 2 units in [0-9]+ s'
build/release/small

build 0
[ ! -s out ] || { echo "nothing to do, and yet:"; cat out; exit 1; }

echo 'int part() { return 3; }' >part.cc
build 0 small
prints 'build: 1 unit to compile .*' 'build: compiled 1 unit in .*'
code=0
build/release/small || code=$?
[ $code -eq 3 ] || { echo "the change was not compiled"; exit 1; }

echo 'int part() { return unknown; }' >part.cc
build 1
prints 'FAILED: .*part\.cc\.o.*' '.*part\.cc:1.* error: .unknown. was not declared in this scope.*|.*error: use of undeclared.*'
if grep -q 'build: compiled' out; then echo "claims that it compiled:"; cat out; exit 1; fi

# A CMake file that is wrong: the whole of CMake's account, and its exit code.
echo 'message(FATAL_ERROR "this and that is missing")' >>CMakeLists.txt
rm -r build
build 1
grep -q 'this and that is missing' out && grep -q 'CXX compiler identification' out || { echo "no account of it:"; cat out; exit 1; }
