#!/usr/bin/env bash
# build.sh PRESET [--configure-only] [targets…]: configures build/PRESET when its settings changed, then builds.
#
# GCC builds every preset but `clang`, `tidy` and `fuzz`, unless CXX names a compiler. CI=true makes warnings errors; without it
# they are errors only with the compilers that CI has (cmake/CompilerSettings.cmake), so that a newer compiler's new
# warning does not stop a user. With CI's compiler both give the same command lines: nothing is compiled twice.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${MEGALITH_DEPS_DIR:-$root/.deps}
preset=$1
shift
configure_only=no
if [ "${1:-}" = --configure-only ]; then configure_only=yes; shift; fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")

kind=gcc
case $preset in clang|tidy|fuzz) kind=clang; unset CXX ;; esac
cxx=${CXX:-$("$root/scripts/find_compiler.sh" $kind)} || { echo "build: no $kind; run make setup" >&2; exit 2; }
werror=AUTO
[ "${CI:-}" != true ] || werror=ON

export PATH="$deps/tools/bin:$PATH"
binary_dir=$root/build/$preset
arguments=(--preset "$preset" "-DCMAKE_CXX_COMPILER=$cxx" "-DMEGALITH_DEPS_DIR=$deps" "-DTORCH_DIR=$deps/torch"
           "-DMEGALITH_WERROR=$werror")
# What a configured tree depends on beyond its CMake files, which ninja watches itself.
settings="${arguments[*]} torch=$(readlink -f "$deps/torch") cxx=$("$cxx" -dumpfullversion -dumpversion)"
if [ ! -e "$binary_dir/build.ninja" ] || [ "$(cat "$binary_dir/settings" 2>/dev/null)" != "$settings" ]; then
  fresh=()
  # A changed compiler or libtorch needs a new cache; a changed warning level does not.
  # So does a tree that somebody configured by hand: another compiler would make CMake drop the preset's variables.
  if [ -e "$binary_dir/CMakeCache.txt" ] &&
     [ "$(sed 's/-DMEGALITH_WERROR=[A-Z]*//' "$binary_dir/settings" 2>/dev/null)" != "$(sed 's/-DMEGALITH_WERROR=[A-Z]*//' <<<"$settings")" ]; then
    fresh=(--fresh)
  fi
  (cd "$root" && cmake "${fresh[@]}" "${arguments[@]}")
  echo "$settings" >"$binary_dir/settings"
fi
[ $configure_only = yes ] || cmake --build "$binary_dir" --parallel "$(env -u OMP_NUM_THREADS nproc)" "${targets[@]}"
