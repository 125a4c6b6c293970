#!/usr/bin/env bash
# lint.sh BUILD_DIR [files…]: clang-tidy over the sources in src, with the compile commands of BUILD_DIR (`make lint`).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tidy=${MEGALITH_DEPS_DIR:-$root/.deps}/tools/bin/clang-tidy
build_dir=$1
shift
cd "$root"
files=("$@")
# Only what is compiled: a source that no target lists has no compile command.
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(sed -n 's/^ *"file": *"\(.*\)",\{0,1\}$/\1/p' "$build_dir/compile_commands.json" |
  grep -F "$root/src/" | grep '\.cc$' | sort -u)
[ ${#files[@]} -gt 0 ] || { echo "lint: nothing to check in $build_dir" >&2; exit 2; }
echo "clang-tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" "$tidy" -p "$build_dir" --quiet 2> >(grep -vE 'warnings generated|^$' >&2)
