#!/usr/bin/env bash
# presets_test.sh ROOT CMAKE SETTINGS…: builds that the usual tests never make can at least be configured.
set -euo pipefail

cd "$1"
cmake=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for preset in debug edit asan tsan; do
  "$cmake" --preset "$preset" -B "$folder/$preset" "$@" >"$folder/log" 2>&1 ||
    { echo "presets_test: preset $preset:" >&2; cat "$folder/log" >&2; exit 1; }
done
