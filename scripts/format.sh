#!/usr/bin/env bash
# format.sh [--fix]: clang-format over src, tests, bench, fuzz and python; without --fix it only says what it would change.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export MEGALITH_CLANG_FORMAT=${MEGALITH_DEPS_DIR:-$root/.deps}/tools/bin/clang-format
if [ "${1:-}" != --fix ]; then exec "$root/tests/tree/check_format.sh" "$root"; fi
cd "$root"
find src tests bench fuzz python -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | xargs -r "$MEGALITH_CLANG_FORMAT" -i
