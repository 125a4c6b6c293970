#!/usr/bin/env bash
# headers_test.sh BUILD_DIR CXX [--each]: compiles every public header against the package that install_test.sh has left, by
# module or, with --each, alone. First come two bad headers, which have to be refused.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build_dir=$1
cxx=$2
each=OFF
[ "${3:-}" != --each ] || each=ON
package=$build_dir/tests/package/moved
work=$build_dir/tests/package/headers-$each
rm -rf "$work"

compile() {  # compile NAME HEADERS_DIR
  cmake -G Ninja -S "$here/headers" -B "$work/$1" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$package" \
    -DHEADERS_DIR="$2" -DEACH=$each >"$work-$1.log" || { cat "$work-$1.log"; exit 1; }
  cmake --build "$work/$1" -- -k 0
}

if refusals=$(compile bad "$here/bad_headers" 2>&1); then
  echo "headers that include what is not installed, or forget an include, were accepted"
  exit 1
fi
for header in not_installed/includes_program.h not_alone/forgets_string.h; do
  grep -qF "$header:" <<<"$refusals" || { echo "$refusals"; echo "$header was not refused"; exit 1; }
done
compile good "$package/include"
