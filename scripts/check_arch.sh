#!/usr/bin/env bash
# check_arch.sh aarch64|x86_64 [targets…]: whether the program is right on such a machine, without having one (`make check-arm64`).
#
# On a machine of that kind it is `make test`. On any other the distribution's cross compiler builds src and tests in
# build/check-ARCH against that machine's libtorch and libraries, and qemu-user runs `megalith --version`, previews, a command that
# reads a Parquet file, and the tests of layout, config and tokenizer. Targets limit what is built, and what is not built is not run.
#
# Fetched once, into .deps: the wheels with libtorch (500 MB) and Arrow (55 MB), and the packages of the libraries with all that
# they need, unpacked into sysroot-ARCH and never installed: the system keeps its own architecture. Only the compiler and qemu-user
# are installed, or named when that is not allowed. Debian and Ubuntu.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source scripts/progress.sh
case ${1:-} in
  aarch64) debian=arm64 compiler=g++-aarch64-linux-gnu ;;
  x86_64) debian=amd64 compiler=g++-x86-64-linux-gnu ;;
  *) echo "usage: check_arch.sh aarch64|x86_64 [targets…]" >&2; exit 2 ;;
esac
arch=$1
shift
if [ "$(uname -m)" = "$arch" ]; then
  echo "check_arch: this machine is $arch: the ordinary suite"
  exec make test
fi

say() { echo "check_arch: $*" >&2; }
fail() { say "$*"; exit 2; }
command -v apt-get >/dev/null || fail "needs Debian or Ubuntu with apt-get, from which $arch libraries are fetched"
mkdir -p "${MEGALITH_DEPS_DIR:-.deps}"
deps=$(cd "${MEGALITH_DEPS_DIR:-.deps}" && pwd)
sysroot=$deps/sysroot-$arch

# apt with lists, archives and state of its own, for that architecture, on a system where nothing is installed yet: it names and
# fetches the packages with everything that they need, and needs no root.
write_apt_configuration() {
  mkdir -p "$work"/{lists/partial,archives/partial,sources}
  : >"$work/status"
  cat >"$work/apt.conf" <<END
APT::Architecture "$debian";
APT::Architectures { "$debian"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "$work";
Dir::State::status "$work/status";
Dir::State::lists "$work/lists";
Dir::Cache "$work";
Dir::Cache::archives "$work/archives";
END
  # Debian's mirrors have every architecture. Ubuntu keeps amd64 apart from all others.
  local ID='' VERSION_CODENAME='' mirror
  source /etc/os-release
  if [ "$ID" = ubuntu ]; then
    mirror=http://ports.ubuntu.com/ubuntu-ports
    [ $debian != amd64 ] || mirror=http://archive.ubuntu.com/ubuntu
    printf "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] $mirror %s main universe\n" \
      "$VERSION_CODENAME" "$VERSION_CODENAME-updates" >"$work/sources/ubuntu.list"
    cat >>"$work/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$work/sources";
END
  fi
}

# The libraries and what they need, into $sysroot, which gets its name when it is complete.
make_sysroot() {
  local packages archive link
  work=$deps/tmp-sysroot.$$
  trap 'rm -rf "$work"' EXIT
  write_apt_configuration
  export APT_CONFIG=$work/apt.conf
  mapfile -t packages < <(scripts/setup.sh --libraries)
  say "fetching $arch packages of ${packages[*]}"
  apt-get -qq update </dev/null >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt-get found no $debian packages"; }
  # libgomp1: libtorch's OpenMP, where its wheel does not bring its own.
  packages+=(libgomp1 libstdc++6)
  apt-get -qq -y --download-only install "${packages[@]}" </dev/null >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "could not fetch the $debian packages; see above"; }
  mkdir "$work/root"
  for archive in "$work"/archives/*.deb; do dpkg-deb -x "$archive" "$work/root"; done
  # Links to full names would lead out of the sysroot.
  find "$work/root" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfn "$(realpath -ms --relative-to="$(dirname "$link")" "$work/root$(readlink "$link")")" "$link"
  done
  mv "$work/root" "$sysroot"
  unset APT_CONFIG
  say "$(find "$work/archives" -name '*.deb' | wc -l) packages in $sysroot"
  rm -rf "$work"
}

# emulated PROGRAM ARGUMENT…
emulated() { "qemu-$arch" -cpu max -L "$sysroot" "$@"; }

ran=()
failed=()
# step NAME COMMAND…: runs it, says how long it took, and shows what it printed when it fails.
step() {
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    say "$name: ok, $(elapsed $((SECONDS - start)))$(sed -n 's/^\[  PASSED  \] \([0-9]* tests\{0,1\}\)\..*/, \1/p' "$log")"
    ran+=("$name")
  else
    cat "$log" >&2
    say "$name: FAILED after $(elapsed $((SECONDS - start)))"
    failed+=("$name")
  fi
}

# prints LINE ARGUMENT…: the program prints this line, among others.
prints() {
  local line=$1 text
  shift
  text=$(emulated "$bin/megalith" "$@") || return 1
  printf '%s\n' "$text"
  grep -qxF -e "$line" <<<"$text"
}
version_matches() { prints "megalith $(head -n 1 VERSION)" --version; }
previews_match() {
  prints "    1        1      0        2-4      3" preview layers --num_layers 10 --pp 4 &&
    prints "16 ranks, order tp-cp-ep-dp-pp (fastest first)" preview groups --world-size 16 --tp 2 --pp 2
}

# Through the plug-in, which has libraries of its own.
parquet_is_read() {
  emulated "$bin/megalith" data train-tokenizer tests/data/tables/codec_zstd.parquet --vocab_size 280 \
    --output "build/check-$arch/tokenizer" --overwrite
}

scripts/setup.sh
scripts/setup.sh --packages "$compiler" qemu-user
[ -d "$sysroot" ] || make_sysroot
scripts/build.sh "check-$arch" "$@"

bin=build/check-$arch/bin
log=build/check-$arch/last.log
if [ -x "$bin/megalith" ]; then
  step "megalith --version" version_matches
  step "megalith preview" previews_match
  step "a Parquet file" parquet_is_read
fi
for module in layout config tokenizer; do
  if [ -x "$bin/${module}_test" ]; then step "${module}_test" emulated "$bin/${module}_test" --gtest_brief=1; fi
done
if [ ${#failed[@]} -gt 0 ]; then
  say "on $arch failed: ${failed[*]}"
  exit 1
fi
[ ${#ran[@]} -gt 0 ] || fail "nothing was run: build megalith, layout_test, config_test or tokenizer_test"
say "$arch is right in ${#ran[@]} checks, after $(elapsed $SECONDS)"
