#!/usr/bin/env bash
# wheel.sh PRESET [--test]: builds the Python package in build/PRESET and packs it as dist/megalith-*.whl, for the Python of
# `scripts/interop.sh --python`; PYTHON=… names another one, which must have its headers. With the preset `cuda` the kernels are
# compiled for the GPUs of MEGALITH_CUDA_ARCHITECTURES, by default "80;90;100", and not for those of this machine alone.
#
# --test installs the wheel in a fresh virtual environment, which takes torch from the first one, and runs python/tests with it. No
# test may be skipped for want of a package, unless PYTHON names the environment.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=$1
build=$root/build/$preset
[ "$preset" != cuda ] || export MEGALITH_CUDA_ARCHITECTURES=${MEGALITH_CUDA_ARCHITECTURES:-80;90;100}
python=${PYTHON:-$("$root/scripts/interop.sh" --python)}

"$root/scripts/build.sh" "$preset" --configure-only
cmake -S "$root" -B "$build" -DMEGALITH_PYTHON=ON "-DPython3_EXECUTABLE=$python" >"$build/python_configure.log" 2>&1 ||
  { cat "$build/python_configure.log" >&2; echo "wheel: the Python package needs the headers of $python (Debian: python3-dev)" >&2; exit 2; }
cmake --build "$build" --target megalith_python_package
packed=$("$python" "$root/scripts/wheel.py" "$build" "$root/dist")
echo "$packed"
[ "${2:-}" = --test ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
# The packages of the first environment, torch and pytest among them, but not a megalith that it may have.
"$python" -c 'import sysconfig; print("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))' \
  >"$(echo "$work"/venv/lib/python*/site-packages)/first.pth"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-index --no-deps "${packed% (*}"
cd "$work"
[ -n "${PYTHON:-}" ] || export MEGALITH_ALL_PACKAGES=1
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider "$root/python/tests"
