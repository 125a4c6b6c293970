#!/usr/bin/env bash
# package.sh BUILD_DIR DIST_DIR: DIST_DIR/megalith-VERSION-linux-ARCH.tar.gz, which runs from any folder on any Linux whose
# glibc is not older than this machine's: bin/megalith, every library it needs beside glibc in lib/, and their licences.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$(cd "$1" && pwd)
mkdir -p "$2"
dist=$(cd "$2" && pwd)
name=megalith-$(head -n 1 "$root/VERSION")-linux-$(uname -m)
stage=$dist/stage.$$
trap 'rm -rf "$stage" "$dist/$name.tar.gz.part"' EXIT
package=$stage/$name
mkdir -p "$package"/{bin,lib,licenses}

DESTDIR= cmake --install "$build_dir" --prefix "$package" --component program --strip >/dev/null

# Before the search path is cut to $ORIGIN/../lib, ldd still finds everything where the build found it.
arrow_plugin=$build_dir/lib/libmegalith_arrow.so
programs=("$build_dir/bin/megalith")
[ ! -e "$arrow_plugin" ] || programs+=("$arrow_plugin")
ldd "${programs[@]}" | awk '/=> not found/ { print "missing: " $1 > "/dev/stderr"; bad = 1 }
  $2 == "=>" && $3 ~ /^\// && !seen[$1]++ { print $1, $3 } END { exit bad }' >"$stage/libraries"
while read -r library path; do
  case $library in
    libc.so.*|libm.so.*|libdl.so.*|librt.so.*|libpthread.so.*|libutil.so.*|libresolv.so.*|libanl.so.*|ld-linux*) continue ;;
  esac
  # A hard link when it can be: libtorch has 450 MB.
  real=$(readlink -f "$path")
  ln "$real" "$package/lib/$library" 2>/dev/null || cp "$real" "$package/lib/$library"
  # Debian keeps the licence with the package that owns the file; wheels keep theirs in *.dist-info.
  owner=$(dpkg-query -S "$real" 2>/dev/null | head -n 1 | cut -d: -f1) || true
  if [ -n "$owner" ] && [ -e "/usr/share/doc/$owner/copyright" ]; then
    cp -L "/usr/share/doc/$owner/copyright" "$package/licenses/$owner.txt"
  fi
done <"$stage/libraries"
# copy_licenses FOLDER…: those of unpacked wheels; a folder that is not there has none.
copy_licenses() {
  local info file
  for info in "$@"; do
    [ -d "$info" ] || continue
    find "$info" \( -iname '*licen[sc]e*' -o -iname 'notice*' \) -type f | while IFS= read -r file; do
      cp "$file" "$package/licenses/$(basename "$info" .dist-info)-$(basename "$file")"
    done
  done
}
# folder_of LIBRARY_PATTERN: where the library lies on this machine.
folder_of() { awk -v name="$1" '$1 ~ name { print $2; exit }' "$stage/libraries" | xargs -r dirname; }
copy_licenses "$(folder_of '^libtorch_cpu[.]so')"/../../{torch-*,nvidia_cuda_runtime-*,nvidia_cuda_cupti-*}.dist-info
copy_licenses "$(folder_of '^libarrow[.]so')"/../pyarrow-*.dist-info
[ ! -e "$root/LICENSE" ] || cp "$root/LICENSE" "$package/"
cp "$root/VERSION" "$package/"
echo 'file(RPATH_SET FILE "${FILE}" NEW_RPATH "$ORIGIN/../lib")' >"$stage/rpath.cmake"
cmake -DFILE="$package/bin/megalith" -P "$stage/rpath.cmake"
[ ! -e "$arrow_plugin" ] || cmake -DFILE="$package/lib/libmegalith_arrow.so" -P "$stage/rpath.cmake"

compress=(gzip -1)
if command -v pigz >/dev/null; then compress=(pigz -1); fi
tar -C "$stage" --owner=0 --group=0 --hard-dereference -cf - "$name" | "${compress[@]}" >"$dist/$name.tar.gz.part"
mv "$dist/$name.tar.gz.part" "$dist/$name.tar.gz"
echo "$dist/$name.tar.gz ($(du -h "$dist/$name.tar.gz" | cut -f1))"
