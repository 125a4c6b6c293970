#!/usr/bin/env bash
# progress_test.sh ROOT: scripts/progress.sh over what ninja printed once: how far the build is, every word of the compiler, and the
# exit code.
set -euo pipefail

scripts=$1/scripts
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
source "$scripts/progress.sh"

# show EXIT_CODE UNITS CORES: feeds stdin to progress.sh as build.sh does, from a program that ends with this code.
show() {
  local wanted=$1 code=0
  shift
  (set -o pipefail; { cat; exit "$wanted"; } | PROGRESS_INTERVAL=0 "$scripts/progress.sh" "$@") >"$folder/out" 2>&1 || code=$?
  [ "$code" -eq "$wanted" ] || { echo "exit code $code instead of $wanted:"; cat "$folder/out"; exit 1; }
  sed -i -E 's/ in [0-9]+ s$/ in … s/' "$folder/out"  # on a busy machine it takes more than no time
}
# is TEXT: all that was printed.
is() { diff -u <(printf '%s\n' "$1") "$folder/out" || { echo "progress_test: not the expected output"; exit 1; }; }
# says WORDS COMMAND…
says() {
  local wanted=$1 said
  shift
  said=$("$@")
  [ "$said" = "$wanted" ] || { echo "$*: \"$said\" instead of \"$wanted\""; exit 1; }
}

# A warning, steps that are not compiled, the link.
show 0 3 2 <<'NINJA'
@step 1/6 Generating tables.inc
@step 2/6 Building CXX object src/CMakeFiles/pch.dir/cmake_pch.hxx.gch
@step 3/6 Building CXX object src/CMakeFiles/a.dir/a.cc.o
a.cc:3:7: warning: unused variable 'x' [-Wunused-variable]
    3 |   int x;
      |       ^
@step 4/6 Building CUDA object src/CMakeFiles/b.dir/b.cu.o
@step 5/6 Linking CXX static library src/liba.a
@step 6/6 Linking CXX executable bin/a
NINJA
is "build: compiling 1 of 3, less than a minute left
build: compiling 2 of 3, less than a minute left
build: compiling 3 of 3, less than a minute left
Building CXX object src/CMakeFiles/a.dir/a.cc.o
a.cc:3:7: warning: unused variable 'x' [-Wunused-variable]
    3 |   int x;
      |       ^
build: compiled 3 of 3, linking
build: compiled 3 units in … s"

# An error: ninja's code, every line as it was, no claim that anything was compiled.
error="Building CXX object src/CMakeFiles/a.dir/a.cc.o
FAILED: src/CMakeFiles/a.dir/a.cc.o
/usr/bin/c++ -I\"src with blanks\" -std=c++20 -o a.cc.o -c a.cc
a.cc: In function 'int main()':
a.cc:3:3: error: 'y' was not declared in this scope
	3 |   y = 1;  \\ back %s slash
ninja: build stopped: subcommand failed."
show 3 40 2 <<NINJA
@step 1/80 Building CXX object src/CMakeFiles/pch.dir/cmake_pch.hxx.gch
@step 2/80 ${error%ninja:*}ninja: build stopped: subcommand failed.
NINJA
is "build: compiling 2 of 40, about 5 minutes left
build: compiling 3 of 40, about 4 minutes left
$error"

# The last line has no end: it comes through all the same.
show 1 1 2 < <(printf '@step 1/1 Building CXX object a.o\nFAILED: a.o\nc++: fatal error: Killed')
expected='FAILED: a.o
c++: fatal error: Killed'
[[ $(cat "$folder/out") == *"$expected" ]] || { echo "the last line is missing:"; cat "$folder/out"; exit 1; }

# Nothing to do: nothing to say.
show 0 0 2 <<<'ninja: no work to do.'
[ ! -s "$folder/out" ] || { echo "not silent:"; cat "$folder/out"; exit 1; }

# CMake runs again: only what it misses, and what is wrong, is news.
show 0 0 1 <<'NINJA'
@step 0/1 Re-running CMake...
-- libtorch 2.11.0 in /somewhere
-- Without sentencepiece: tokenizers that need it cannot be opened
-- Configuring done
NINJA
is "Re-running CMake...
-- Without sentencepiece: tokenizers that need it cannot be opened"

# The estimate: 55 units of 16 s on 2 cores; half of them done in twice that time; nothing left.
says 440 time_left 0 55 0 2
says 740 time_left 27 55 862 2
says 0 time_left 55 55 900 2
says "about 7 minutes" duration 440
says "about a minute" duration 75
says "less than a minute" duration 10
says "9 min 5 s" elapsed 545
