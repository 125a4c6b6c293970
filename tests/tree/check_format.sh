#!/usr/bin/env bash
# clang-format has nothing to change in src, tests, bench, fuzz and python (`make format` changes it).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# One version for everybody: others format a few things differently.
tool=${MEGALITH_CLANG_FORMAT:-}
if ! { [ -n "$tool" ] && "$tool" --version 2>/dev/null | grep -q 'version 16\.'; }; then
  echo "SKIP: no clang-format 16; make setup fetches it"
  exit 77
fi
mapfile -t sources < <(tree_files src tests bench fuzz python | grep -E '\.(h|cc|cu|cuh)$')
[ ${#sources[@]} -eq 0 ] || problems_from < <("$tool" --dry-run --style=file "${sources[@]}" 2>&1 |
  awk -F: '/(warning|error):/ && !seen[$1]++ { print $1 ":" $2 ": not as clang-format writes it; run make format" }')
finish
