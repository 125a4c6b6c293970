#!/usr/bin/env bash
# interop.sh BUILD_DIR [ctest arguments…]: runs the tests that open our files in other programs: transformers, peft, megatron-core,
# tensorboard and torchrun. `interop.sh --python` only prepares their Python, and prints its path.
#
# Those tests are the ones that tests/allowed_skips.txt lets skip for want of MEGALITH_PYTHON. Here nothing may be skipped: a
# package that is missing is a failure.
#
# The Python is a virtual environment in .deps/interop with the versions of scripts/interop_requirements.txt. It is made once, and
# again when these change. Its torch is the one that the build uses where that is a package that Python can import; otherwise it is
# fetched (4.5 GB with its libraries). pip's own configuration decides where from, as in scripts/setup.sh.
#
# Exit code 2: the Python could not be prepared.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${MEGALITH_DEPS_DIR:-$root/.deps}
requirements=$root/scripts/interop_requirements.txt
torch_version=$(sed -n 's/^torch_version=//p' "$root/scripts/setup.sh")
oldest_python=3.10  # that transformers runs with
environment=$deps/interop
source "$root/scripts/progress.sh"

say() { echo "interop: $*" >&2; }
fail() { say "$*"; exit 2; }

# Prints the first Python that is new enough and can make virtual environments.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.{14..10}; do
    "$python" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (${oldest_python/./, }))" 2>/dev/null || continue
    echo "$python"
    return
  done
  fail "no Python $oldest_python or newer with venv was found; install python3-venv"
}

# install REQUIREMENT…: into $work.
install() {
  "$work/bin/python" -m pip install -q --disable-pip-version-check "$@" </dev/null >"$work/pip.log" 2>&1 && return
  cat "$work/pip.log" >&2
  fail "pip could not install $*; see its message above. Without a network, a folder of wheels serves:" \
    "PIP_FIND_LINKS=folder PIP_NO_INDEX=1 make test-interop"
}

# Lets the environment import the build's torch, if it can.
share_torch() {
  local packages
  packages=$(cd "$deps/torch/.." 2>/dev/null && pwd) || return
  PYTHONPATH=$packages "$work/bin/python" -c "import torch.distributed; assert torch.__version__.split('+')[0] == '$torch_version'" \
    2>/dev/null || return
  "$work/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" |
    while read -r folder; do echo "$packages" >"$folder/shared_torch.pth"; done
}

prepare() {
  local key start=$SECONDS python
  key="$(cksum <"$requirements") torch $torch_version"
  [ "$(cat "$environment/stamp" 2>/dev/null)" != "$key" ] || return 0
  python=$(find_python)
  # Made in its place: a virtual environment cannot be moved. The stamp says that it is complete.
  work=$environment
  rm -rf "$work"
  "$python" -m venv "$work"
  if share_torch; then
    say "using the build's torch"
  else
    say "fetching torch $torch_version for Python with its libraries (4.5 GB), which takes some minutes"
    install "torch==$torch_version"
  fi
  say "fetching $(grep -v '^#' "$requirements" | paste -sd ' ')"
  install -r "$requirements"
  echo "$key" >"$work/stamp"
  say "… took $(elapsed $((SECONDS - start)))"
}

mkdir -p "$deps"
exec 9>"$deps/lock.interop"
flock 9
prepare
exec 9>&-
python=$environment/bin/python
if [ "${1:-}" = --python ]; then echo "$python"; exit; fi

# A test that may be skipped for want of a Python is known to CTest by its suite (module.Suite) or by its own name.
patterns=$(sed -n 's/^\([^ ]*\) .*MEGALITH_PYTHON.*/\1/p' "$root/tests/allowed_skips.txt" | sed 'p; s/^\([^.]*\.[^.\\]*\).*/\1/' |
  sort -u | paste -sd '|')
MEGALITH_PYTHON=$python MEGALITH_ALLOWED_SKIPS=/dev/null HF_HUB_OFFLINE=1 \
  "$root/scripts/run_tests.sh" "$1" -R "^($patterns)\$" "${@:2}"
