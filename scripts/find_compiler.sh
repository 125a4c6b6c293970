#!/usr/bin/env bash
# Prints the C++ compiler to use: find_compiler.sh gcc (12 or newer) | clang (16 or newer).
# Exit code 1, and nothing printed, when there is none. The distribution's default GCC is preferred; for Clang the oldest
# version that is good enough, so that everybody sees the same warnings.
set -euo pipefail

case ${1:-} in
  gcc) oldest=12 candidates=(g++ g++-{12..20}) ;;
  clang) oldest=16 candidates=(clang++-{16..30} clang++) ;;
  *) echo "usage: find_compiler.sh gcc|clang" >&2; exit 2 ;;
esac

for candidate in "${candidates[@]}"; do
  path=$(command -v "$candidate") || continue
  version=$("$path" -dumpversion 2>/dev/null) || continue
  if [ "${version%%.*}" -ge "$oldest" ] 2>/dev/null; then
    echo "$path"
    exit 0
  fi
done
exit 1
