#!/usr/bin/env bash
# check_arch_test.sh ROOT: what scripts/check_arch.sh does before it builds: on a machine of that kind it is `make test`, with its exit
# code; without apt it says what it needs; other processors are refused.
set -euo pipefail

root=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
printf '#!/bin/bash\necho "make $*"\nexit 7\n' >"$folder/bin/make"
chmod +x "$folder/bin/make"

# check EXIT_CODE TEXT ARGUMENT…: in a shell whose PATH is $path.
check() {
  local wanted=$1 text=$2 code=0
  shift 2
  PATH=$path /bin/bash "$root/scripts/check_arch.sh" "$@" >"$folder/out" 2>&1 || code=$?
  [ $code -eq "$wanted" ] || { echo "exit code $code instead of $wanted:"; cat "$folder/out"; exit 1; }
  grep -qF -e "$text" "$folder/out" || { echo "not said: $text; but:"; cat "$folder/out"; exit 1; }
}

path=$folder/bin:$PATH
here=$(uname -m)
case $here in x86_64) other=aarch64 ;; *) other=x86_64 ;; esac
if [ "$here" = aarch64 ] || [ "$here" = x86_64 ]; then check 7 "make test" "$here"; fi
check 2 "usage: check_arch.sh aarch64|x86_64" riscv64
check 2 "usage: check_arch.sh aarch64|x86_64"
# A system without apt: nothing but these.
for tool in dirname uname; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
path=$folder/bin
check 2 "needs Debian or Ubuntu" "$other"
