#!/usr/bin/env bash
# check_headers.sh BUILD_DIR [headers…]: compiles each header of src/megalith on its own (`make check-headers`).
#
# A unity build or the precompiled header can supply what a header forgot to include. Here each header meets the compiler
# alone, with the flags of its module (BUILD_DIR was configured with the preset `edit`) and without the precompiled header.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$(cd "$1" && pwd)
shift
cd "$root"
headers=("$@")
[ ${#headers[@]} -gt 0 ] || mapfile -t headers < <(find src/megalith -name '*.h' | sort)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The compile command of one source per module, into $work/MODULE.
awk -v prefix="\"file\": \"$root/src/megalith/" -v work="$work" '
  /^ *"command": / { command = $0 }
  (at = index($0, prefix)) {
    module = substr($0, at + length(prefix)); sub("/.*", "", module)
    if (!(module in seen)) { seen[module] = 1; print command > (work "/" module) }
  }' "$build_dir/compile_commands.json"
for file in "$work"/*; do
  # Undone: JSON quoting, ccache, the source and its object, the precompiled header.
  sed -i -E -e 's/^ *"command": "(.*)",?$/\1/' -e 's/\\(["\\])/\1/g' -e 's/^.* CCACHE_[^ ]* [^ ]* //' \
    -e 's/ -o [^ ]+ -c [^ ]+$//' -e 's/ -Winvalid-pch//; s/ -include [^ ]*cmake_pch[^ ]*//' "$file"
done

check() {  # check WORK HEADER
  local module=${2#src/megalith/}
  module=${module%%/*}
  [ -e "$1/$module" ] || { echo "check_headers: no compile command for module $module" >&2; return 1; }
  echo "#include \"${2#src/}\"" | eval "$(cat "$1/$module") -x c++ -fsyntax-only -" ||
    { echo "check_headers: $2 does not compile on its own" >&2; return 1; }
}
export -f check
echo "compiling ${#headers[@]} headers, each on its own"
printf '%s\0' "${headers[@]}" | xargs -0 -n 1 -P "$(env -u OMP_NUM_THREADS nproc)" bash -c 'check "$@"' check "$work"
