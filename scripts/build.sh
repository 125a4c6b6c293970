#!/usr/bin/env bash
# build.sh PRESET [--configure-only] [targets…]: configures build/PRESET when its settings changed, then builds. It says how far
# it is (scripts/progress.sh), and nothing when there is nothing to do.
#
# GCC builds every preset but `clang`, `tidy` and `fuzz`, unless CXX names a compiler; `check-ARCH` takes the cross compiler. CI=true makes warnings errors; without it
# they are errors only with the compilers that CI has (cmake/CompilerSettings.cmake), so that a newer compiler's new
# warning does not stop a user. With CI's compiler both give the same command lines: nothing is compiled twice.
#
# MEGALITH_CUDA_ARCHITECTURES: for the preset `cuda`, the GPUs to compile for ("80;90;100") instead of those of this machine.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/gpu.sh"
source "$root/scripts/progress.sh"
deps=${MEGALITH_DEPS_DIR:-$root/.deps}
preset=$1
shift
configure_only=no
if [ "${1:-}" = --configure-only ]; then configure_only=yes; shift; fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")

kind=gcc
cross=  # the machine to compile for, where it is not this one
case $preset in
  clang|tidy|fuzz) kind=clang; unset CXX ;;
  check-*) cross=${preset#check-}; CXX=$cross-linux-gnu-g++ ;;
esac
cxx=${CXX:-$("$root/scripts/find_compiler.sh" $kind)} || { echo "build: no $kind; run make setup" >&2; exit 2; }
werror=AUTO
[ "${CI:-}" != true ] || werror=ON

export PATH="$deps/tools/bin:$PATH"
binary_dir=$root/build/$preset
torch=$deps/torch
arrow=$deps/arrow
if [ -n "$cross" ]; then
  torch=$("$root/scripts/setup.sh" --torch-for "$cross")
  arrow=$("$root/scripts/setup.sh" --arrow-for "$cross")
fi
arguments=(--preset "$preset" "-DCMAKE_CXX_COMPILER=$cxx" "-DMEGALITH_DEPS_DIR=$deps" "-DTORCH_DIR=$torch" "-DARROW_DIR=$arrow"
           "-DMEGALITH_WERROR=$werror")
[ -z "$cross" ] || arguments+=("-DMEGALITH_SYSROOT=$deps/sysroot-$cross")
if [ "$preset" = cuda ]; then
  # CMake looks for nvcc in PATH alone; its host compiler is the one that compiles everything else.
  arguments+=("-DCMAKE_CUDA_HOST_COMPILER=$cxx")
  if nvcc=$(find_nvcc); then arguments+=("-DCMAKE_CUDA_COMPILER=$nvcc"); fi
  [ -z "${MEGALITH_CUDA_ARCHITECTURES:-}" ] || arguments+=("-DMEGALITH_CUDA_ARCHITECTURES=$MEGALITH_CUDA_ARCHITECTURES")
fi
# The inputs of a configured tree beyond its CMake files, which ninja watches itself.
settings="${arguments[*]} torch=$(readlink -f "$torch") arrow=$(readlink -f "$arrow") cxx=$("$cxx" -dumpfullversion -dumpversion)"
[ -z "$cross" ] || settings+=" sysroot=$(stat -c %Y "$deps/sysroot-$cross")"

# CMake's account of what it found is kept in a file; what it did not find is shown, and all of it when something went wrong.
configure() {
  local log=$root/build/configure-$preset.log
  echo "build: configuring $preset"
  mkdir -p "$root/build"
  (cd "$root" && cmake "$@" "${arguments[@]}") >"$log" || { cat "$log"; return 1; }
  grep -e '^-- Without ' "$log" || true
}
run_ninja() { NINJA_STATUS=$ninja_status cmake --build "$binary_dir" "$@" 2>&1; }
# How many compile steps the build will have, from a dry run. Under the name build.ninja, ninja would first see to its own file,
# and a dry run ends there.
units_ahead() {
  ln -sf build.ninja "$binary_dir/plan.ninja"
  run_ninja "${targets[@]}" -- -n -f plan.ninja | grep -cE '^@step [0-9/]+ Building [A-Z]+ object' || true
}

if [ ! -e "$binary_dir/build.ninja" ] || [ "$(cat "$binary_dir/settings" 2>/dev/null)" != "$settings" ]; then
  fresh=()
  # A changed compiler or libtorch needs a new cache; a changed warning level does not.
  # So does a tree that somebody configured by hand: another compiler would make CMake drop the preset's variables.
  if [ -e "$binary_dir/CMakeCache.txt" ] &&
     [ "$(sed 's/-DMEGALITH_WERROR=[A-Z]*//' "$binary_dir/settings" 2>/dev/null)" != "$(sed 's/-DMEGALITH_WERROR=[A-Z]*//' <<<"$settings")" ]; then
    fresh=(--fresh)
  fi
  configure "${fresh[@]}"
  echo "$settings" >"$binary_dir/settings"
fi
if [ $configure_only = yes ]; then exit; fi
run_ninja --target build.ninja | "$root/scripts/progress.sh" 0 1  # CMake again, where its files changed
cores=$(env -u OMP_NUM_THREADS nproc)
units=$(units_ahead)
if [ "$units" -gt 0 ]; then
  echo "build: $units unit$([ "$units" -eq 1 ] || echo s) to compile on $cores core$([ "$cores" -eq 1 ] || echo s), $(duration "$(time_left 0 "$units" 0 "$cores")")"
fi
run_ninja --parallel "$cores" "${targets[@]}" | "$root/scripts/progress.sh" "$units" "$cores"
