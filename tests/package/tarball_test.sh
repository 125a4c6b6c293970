#!/usr/bin/env bash
# tarball_test.sh BUILD_DIR: makes the tarball, unpacks it in a folder far from the build tree, and runs the program with an
# empty environment. Every library it loads must come from that folder or be glibc's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work" "$build_dir/tests/package/dist"' EXIT

"$here/../../scripts/package.sh" "$build_dir" "$build_dir/tests/package/dist"
mkdir "$work/some where else"
tar -xzf "$build_dir"/tests/package/dist/megalith-*.tar.gz -C "$work/some where else"
program=$(echo "$work/some where else"/megalith-*/bin/megalith)

clean() { env -i PATH=/usr/bin:/bin HOME="$work" "$@"; }
cd /
clean "$program" --version
clean "$program" preview groups --world-size 8 --tp 2 --pp 2 --json >"$work/groups.json"
grep -q '"tp"' "$work/groups.json"

# The plug-in for Parquet and Arrow files, with the libraries that it needs.
programs=("$program")
plugin=$(dirname "$program")/../lib/libmegalith_arrow.so
if [ -e "$build_dir/lib/libmegalith_arrow.so" ]; then
  programs+=("$plugin")
  clean "$program" data train-tokenizer "$here/../data/tables/codec_zstd.parquet" --vocab_size 280 --output "$work/tokenizer"
  ls "$(dirname "$plugin")"/../licenses/pyarrow-* >/dev/null
fi

foreign=$(clean ldd "${programs[@]}" | awk '/=>/ && index($0, "/some where else/") == 0 { print $1 }' |
  grep -vE '^(libc|libm|libdl|librt|libpthread|libutil|libresolv|libanl)\.so|^ld-linux' || true)
if [ -n "$foreign" ]; then
  echo "taken from the machine instead of the package:" $foreign
  exit 1
fi
