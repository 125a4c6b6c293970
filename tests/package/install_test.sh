#!/usr/bin/env bash
# install_test.sh BUILD_DIR: installs the built tree into a fresh folder and moves that folder to BUILD_DIR/tests/package/moved,
# where the other tests of the package find it. So neither the build tree nor the first prefix can be what makes them work.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build_dir=$1
work=$build_dir/tests/package
rm -rf "$work/first" "$work/moved"
mkdir -p "$work"
cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
if grep -rlF -e "$build_dir" -e "$work/first" "$work/moved" --include='*.cmake' | grep -v '/MegalithConfig.cmake'; then
  echo "the installed CMake files above name the build tree"
  exit 1
fi

# Every header of the library, but those for their own folder only and those of the program.
public=$(cd "$root/src" && find megalith -name '*.h' ! -name '*_internal.h' ! -path 'megalith/cli/*' | sort)
installed=$(cd "$work/moved/include" && find megalith -name '*.h' ! -path 'megalith/gloo_declarations/*' | sort)
if ! diff <(echo "$public") <(echo "$installed"); then
  echo "other headers are installed (>) than the public ones (<)"
  exit 1
fi
