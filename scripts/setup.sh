#!/usr/bin/env bash
# Everything a build needs: system packages, libtorch, Arrow, and the pinned formatter. Called by make; safe to call again,
# and then it does nothing. `setup.sh --all` adds what `make test-all` needs: Clang and the pinned clang-tidy.
#
# For scripts that compile for another machine (scripts/check_arch.sh):
#   setup.sh --torch-for aarch64|x86_64  only fetches libtorch for the CPU of such a machine, and prints its folder
#   setup.sh --arrow-for aarch64|x86_64  the same for Arrow's libraries
#   setup.sh --libraries                 only prints the Debian packages of the libraries that a build needs
#   setup.sh --packages PACKAGE…         only installs those of these Debian packages that are missing
#
#   TORCH_DIR            the `torch` folder (with include/ and lib/) to use instead of looking for one
#   ARROW_DIR            Arrow and Parquet (a folder with include/ and lib/) to use instead of those of the pyarrow wheel
#   MEGALITH_CPU_ONLY=1  never fetch the CUDA libraries, even on a machine with a GPU
#   MEGALITH_DEPS_DIR    where fetched things go (default: .deps in the tree)
#
# Wheels are fetched by pip, so pip's own configuration (index, find-links, no-index, proxy) decides where from; a folder
# of local wheels is PIP_FIND_LINKS=folder PIP_NO_INDEX=1. The wheel of any Python version serves: it is only unpacked.
#
# Exit code 2: something is missing that this script may not or cannot install; the message says what and how.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${MEGALITH_DEPS_DIR:-$root/.deps}
torch_version=2.11.0
cudnn_front_end_version=1.32.0
torch_oldest=2.11
arrow_version=26.0.1
clang_format_version=16.0.6
clang_tidy_version=16.0.4
cmake_oldest=3.25
cmake_version=3.31.6
want_all=no
[ "${1:-}" = --all ] && want_all=yes
machine=$(uname -m)  # that wheels are fetched for
case ${1:-} in --torch-for|--arrow-for) machine=$2 ;; esac
source "$root/scripts/gpu.sh"
source "$root/scripts/progress.sh"

# The Debian packages of the libraries that a build needs, and a header of each.
libraries=(libfmt-dev:fmt/core.h libspdlog-dev:spdlog/spdlog.h libyaml-cpp-dev:yaml-cpp/yaml.h nlohmann-json3-dev:nlohmann/json.hpp
           libpcre2-dev:pcre2.h libutf8proc-dev:utf8proc.h libsentencepiece-dev:sentencepiece_processor.h zlib1g-dev:zlib.h
           libzstd-dev:zstd.h libjpeg-dev:jpeglib.h libpng-dev:png.h libwebp-dev:webp/decode.h libsndfile1-dev:sndfile.h
           libavformat-dev:libavformat/avformat.h libavcodec-dev:libavcodec/avcodec.h libswscale-dev:libswscale/swscale.h
           libgtest-dev:gtest/gtest.h libgmock-dev:gmock/gmock.h)
if [ "${1:-}" = --libraries ]; then printf '%s\n' "${libraries[@]%%:*}"; exit; fi

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }
# version_at_least A B: A >= B
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
# timed WORDS COMMAND…: says the words, runs the command, and says how long it took.
timed() {
  local words=$1 start=$SECONDS
  shift
  say "$words"
  "$@" || return
  say "… took $(elapsed $((SECONDS - start)))"
}

mkdir -p "$deps/tools/bin"
deps=$(cd "$deps" && pwd)
export PATH="$deps/tools/bin:$PATH"

# One set-up at a time; a second one waits and then finds everything done. What a killed one left behind goes.
exec 9>"$deps/lock"
flock 9
rm -rf "$deps"/tmp.*
work=$deps/tmp.$$
trap 'rm -rf "$work"' EXIT

# ---------------------------------------------------------------------------------------------------- system packages

# header_found fmt/core.h: in the places a compiler and CMake look by default.
header_found() {
  local prefixes=/usr:/usr/local:${CMAKE_PREFIX_PATH:-} prefix
  local IFS=':;'
  for prefix in $prefixes; do
    [ -n "$prefix" ] || continue
    if [ -e "$prefix/include/$1" ] || [ -e "$prefix/include/$machine-linux-gnu/$1" ]; then return 0; fi
  done
  return 1
}
gcc_found() { "$root/scripts/find_compiler.sh" gcc >/dev/null; }
clang_found() { "$root/scripts/find_compiler.sh" clang >/dev/null; }
# The runtime of that Clang's sanitizers and fuzzer: a package of its own in some distributions.
clang_runtime_found() {
  local clang
  clang=$("$root/scripts/find_compiler.sh" clang) || return 1
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$clang" -x c++ -fsanitize=fuzzer,address - -o "$work/fuzzer" 2>/dev/null
}
cmake_found() {
  have cmake && version_at_least "$(cmake --version | sed -n '1s/[^0-9]*//p')" $cmake_oldest
}
# The first Python with pip, in $python.
pip_found() {
  for python in python3 /usr/bin/python3; do
    have "$python" && "$python" -m pip --version >/dev/null 2>&1 && return 0
  done
  return 1
}

# Prints the missing Debian packages, one per line. A pip is only missing when there is something to fetch.
missing_packages() {
  if [ -z "${CXX:-}" ]; then gcc_found || echo g++; fi
  [ $want_all = no ] || clang_found || echo clang-16
  [ $want_all = no ] || clang_runtime_found || echo libclang-rt-16-dev
  have cmake || echo cmake
  have ninja || echo ninja-build
  local library
  for library in "${libraries[@]}"; do header_found "${library#*:}" || echo "${library%%:*}"; done
  if [ "$fetch" = yes ]; then
    pip_found || echo python3-pip
    have unzip || echo unzip
  fi
}

# Not through a pipe: `grep -q` ends before apt-cache has said all, and that would count as a failure now and then.
has_candidate() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ *[0-9] ]]; }

# The newest of the alternatives that this distribution has, for the packages whose name carries a version.
choose_package() {
  local package
  case $1 in
    g++)
      for package in g++ g++-14 g++-13 g++-12; do
        local candidate
        candidate=$(apt-cache policy $package 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9]*\).*/\2/p')
        if [ "${candidate:-0}" -ge 12 ]; then echo $package; return; fi
      done ;;
    clang-16)
      for package in clang-{16..22}; do
        if has_candidate $package; then echo $package; return; fi
      done ;;
    libclang-rt-16-dev)
      # The version of the Clang that is there, or that is about to be installed.
      package=$("$root/scripts/find_compiler.sh" clang) && package=clang-$("$package" -dumpversion) || package=$(choose_package clang-16)
      package=${package#clang-}
      echo "libclang-rt-${package%%.*}-dev"
      return ;;
  esac
  echo "$1"
}

install_packages() {
  local packages=("$@") as_root=() chosen=() package
  if ! have apt-get; then
    say "missing on this machine: ${packages[*]}"
    fail "these are their Debian names; install what your distribution calls them and run this again"
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      say "missing system packages: ${packages[*]}"
      fail "run: sudo apt-get install -y ${packages[*]}"
    fi
  fi
  local quiet=(-qq -o DPkg::Lock::Timeout=300)
  say "installing system packages, which takes a minute or two: ${packages[*]}"
  "${as_root[@]}" apt-get "${quiet[@]}" update </dev/null >"$work/apt.log" 2>&1 || say "apt-get update failed; trying with the lists at hand"
  for package in "${packages[@]}"; do chosen+=("$(choose_package "$package")"); done
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends \
    "${chosen[@]}" </dev/null >>"$work/apt.log" 2>&1 ||
    { cat "$work/apt.log" >&2; fail "could not install; see above, then run: apt-get install ${chosen[*]}"; }
}

# ------------------------------------------------------------------------------------------------------------- wheels

# for_any_python PIP_COMMAND…: runs pip for the running Python, or else for any other that has the wheel.
for_any_python() {
  local python_version platforms version
  # pip wants every kind of wheel that may be taken by its name: those for glibc 2.28 and older.
  platforms=("--platform=manylinux2014_$machine")
  for version in {28..17}; do platforms+=("--platform=manylinux_2_${version}_$machine"); done
  mkdir -p "$work/pip"
  for python_version in "" 3.12 3.13 3.11 3.10 3.14; do
    local other=()
    if [ -z "$python_version" ] && [ "$machine" != "$(uname -m)" ]; then continue; fi
    [ -z "$python_version" ] || other=(--implementation cp --python-version "$python_version" --abi "cp${python_version/./}"
                                       "${platforms[@]}")
    # Files in transfer lie in TMPDIR: beside its place at the end, and where fetching_large can see it grow.
    TMPDIR=$work/pip "$python" -m pip "$1" -q --disable-pip-version-check --only-binary=:all: "${other[@]}" "${@:2}" \
      </dev/null >>"$work/pip.log" 2>&1 && return 0
  done
  cat "$work/pip.log" >&2
  return 1
}
# pip_download FOLDER REQUIREMENT…: without dependencies.
pip_download() { for_any_python download --no-deps -d "$@"; }

# fetching_large MEGABYTES COMMAND…: runs the command and says now and then how much of about so much has arrived.
fetching_large() {
  local megabytes=$1 code=0 teller
  shift
  (
    exec 9>&-  # the lock is not this process's
    SECONDS=0
    while true; do
      read -r -t 10 _ <> <(:) || true  # unlike sleep it leaves no process behind when this one is ended
      say "fetched $(find "$work" -name '*.whl' -printf '%s\n' 2>/dev/null | awk '{ n += $1 } END { printf "%d", n / 1e6 }')" \
        "of about $megabytes MB after $(elapsed $SECONDS)"
    done
  ) &
  teller=$!
  "$@" || code=$?
  kill $teller 2>/dev/null || true
  wait $teller 2>/dev/null || true
  return $code
}

# fetch_tool NAME VERSION: the program of a PyPI wheel as tools/bin/NAME.
fetch_tool() {
  local name=$1 version=$2 module=${1//-/_}
  local home=$deps/tools/$name-$version
  if [ ! -d "$home" ]; then
    say "fetching $name $version"
    mkdir -p "$work/$name/wheel"
    pip_download "$work/$name/wheel" "$name==$version" || fail "could not fetch $name $version; see pip's message above"
    unzip -q -DD "$work/$name"/wheel/*.whl "$module/data/*" -d "$work/$name"
    chmod -R u+rwX,go+rX "$work/$name"
    chmod 755 "$work/$name/$module"/data/bin/*
    mv "$work/$name/$module/data" "$home"
  fi
  ln -sfn "../$name-$version/bin/$name" "$deps/tools/bin/$name"
}

# ----------------------------------------------------------------------------------------------------------- libtorch

# Why the `torch` folder $1 does not serve; empty when it does.
torch_problem() {
  local header=$1/include/torch/headeronly/version.h version lacking
  [ -e "$1/lib/libtorch_cpu.so" ] || { echo "it has no lib/libtorch_cpu.so"; return; }
  [ -e "$1/include/ATen/ATen.h" ] && [ -e "$header" ] || { echo "it has no C++ headers, or is older than $torch_oldest"; return; }
  version=$(sed -n 's/.*define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$header" | paste -sd.)
  version_at_least "$version" $torch_oldest || { echo "it is version $version; $torch_oldest or newer is needed"; return; }
  lacking=$(lacking_libraries "$1")
  [ -z "$lacking" ] || echo "libraries that it needs are not found:" $lacking
}
# Another machine's libtorch cannot be asked here.
lacking_libraries() { [ "$machine" != "$(uname -m)" ] || ldd "$1/lib/libtorch_cpu.so" 2>&1 | sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p'; }

# The folder of the `torch` package of the Python at hand (not imported: that takes seconds).
installed_torch() {
  have python3 || return 0
  (cd / && python3 -c '
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else "")') 2>/dev/null || true
}

machine_kind() { if [ "$(gpu_count)" -gt 0 ]; then echo cuda; else echo cpu; fi; }

# The torch wheel without its dependencies and without what only Python or CUDA needs, plus the two small CUDA libraries
# that libtorch_cpu is linked with (12 MB instead of 4.5 GB). A CPU build of torch needs neither. Files get today's date
# (-DD): one from the future would be newer than every object file and be compiled again and again.
unpack_cpu_torch() {
  local home=$1
  mkdir -p "$work/torch-wheel"
  timed "fetching torch $torch_version (about 500 MB; the CUDA libraries are left out on this machine)" \
    fetching_large 500 pip_download "$work/torch-wheel" "torch==$torch_version" ||
    fail "could not fetch torch $torch_version; see pip's message above"
  unzip -q -DD "$work"/torch-wheel/torch-*.whl 'torch/include/*' 'torch/lib/*.so*' 'torch*.libs/*' 'torch-*.dist-info/*' -d "$home" \
    -x 'torch/lib/*cuda*' 'torch/lib/*nvrtc*' 'torch/lib/*nvshmem*' 'torch/lib/*python*' 'torch/lib/libshm*' \
       'torch/lib/libtorch.so' 'torch/lib/libtorch_global_deps.so' 2>"$work/unzip.log" || [ $? -eq 11 ] ||
    { cat "$work/unzip.log" >&2; fail "could not unpack the torch wheel"; }
  local needed name library
  needed=$(readelf -d "$home/torch/lib/libtorch_cpu.so")
  for name in cuda-runtime cuda-cupti; do
    library=libcupti
    [ $name = cuda-cupti ] || library=libcudart
    case $needed in *"$library.so."*) ;; *) continue ;; esac
    say "fetching nvidia-$name"
    mkdir -p "$work/$name"
    # torch 2.11 asks for CUDA 13.0; any 13.x has the same library name, for those whose folder of wheels has another.
    pip_download "$work/$name" "nvidia-$name==13.0.*" 2>/dev/null || pip_download "$work/$name" "nvidia-$name>=13,<14" ||
      fail "could not fetch nvidia-$name; see pip's message above"
    unzip -q -DD "$work/$name"/*.whl "nvidia/*/lib/$library.so*" '*.dist-info/*' -d "$home"
  done
}

install_cuda_torch() {
  timed "fetching torch $torch_version with its CUDA libraries (about 4.5 GB; MEGALITH_CPU_ONLY=1 leaves them out)" \
    fetching_large 4500 for_any_python install --no-compile --target "$1" "torch==$torch_version" ||
    fail "could not fetch torch $torch_version; see pip's message above"
}

# Sets $torch_home to the folder to link as .deps/torch, or to the empty string when it has to be fetched first.
choose_torch() {
  local problem candidate
  torch_home=
  if [ -n "${TORCH_DIR:-}" ]; then
    problem=$(torch_problem "$TORCH_DIR")
    [ -z "$problem" ] || fail "TORCH_DIR=$TORCH_DIR cannot be used: $problem"
    torch_home=$(cd "$TORCH_DIR" && pwd)
    return
  fi
  candidate=$(installed_torch)
  if [ -n "$candidate" ]; then
    problem=$(torch_problem "$candidate")
    if [ -z "$problem" ] && [ "$(machine_kind)" = cuda ] && [ ! -e "$candidate/lib/libtorch_cuda.so" ]; then
      problem="it has no CUDA part, and this machine has a GPU (MEGALITH_CPU_ONLY=1 takes it)"
    fi
    if [ -z "$problem" ]; then torch_home=$candidate; return; fi
    say "the installed torch in $candidate is not used: $problem"
  fi
  # Fetched before: such a folder only gets its name when it is complete.
  if [ -d "$fetched_torch/torch" ]; then torch_home=$fetched_torch/torch; fi
}

# fetch_torch cpu|cuda: into $fetched_torch, which sets $torch_home.
fetch_torch() {
  local problem unpacked=$work/torch-home
  mkdir -p "$unpacked"
  if [ "$1" = cuda ]; then install_cuda_torch "$unpacked"; else unpack_cpu_torch "$unpacked"; fi
  chmod -R u+rwX,go+rX "$unpacked"
  problem=$(torch_problem "$unpacked/torch")
  [ -z "$problem" ] || fail "the torch $torch_version that pip fetched cannot be used: $problem"
  mv "$unpacked" "$fetched_torch"
  torch_home=$fetched_torch/torch
}

link_torch() {
  # A relative link for what lies in .deps, so that the tree can be moved.
  local target=${torch_home#"$deps"/}
  ln -sfn "$target" "$deps/torch"
  say "libtorch: $torch_home"
}

# -------------------------------------------------------------------------------------------------------------- Arrow

# Why the folder $1 does not serve; empty when it does.
arrow_problem() {
  local file
  for file in include/arrow/util/config.h include/parquet/arrow/reader.h lib/libarrow.so lib/libparquet.so; do
    [ -e "$1/$file" ] || { echo "it has no $file"; return; }
  done
}

# Two libraries and their headers out of the pyarrow wheel, into $fetched_arrow.
fetch_arrow() {
  local unpacked=$work/arrow-home library name
  mkdir -p "$work/arrow-wheel" "$unpacked/lib"
  timed "fetching pyarrow $arrow_version (55 MB, for Parquet and Arrow files)" \
    pip_download "$work/arrow-wheel" "pyarrow==$arrow_version" || return
  unzip -q -DD "$work"/arrow-wheel/pyarrow-*.whl 'pyarrow/include/*' 'pyarrow/libarrow.so.*' 'pyarrow/libparquet.so.*' \
    'pyarrow-*.dist-info/*' -d "$unpacked" || return
  mv "$unpacked/pyarrow/include" "$unpacked/include"
  for library in "$unpacked"/pyarrow/lib*.so.*; do
    name=$(basename "$library")
    mv "$library" "$unpacked/lib/$name"
    ln -s "$name" "$unpacked/lib/${name%%.so.*}.so"  # the name that linkers look for
  done
  rm -rf "$unpacked/pyarrow"
  chmod -R u+rwX,go+rX "$unpacked"
  [ -z "$(arrow_problem "$unpacked")" ] || { say "the wheel cannot be used: $(arrow_problem "$unpacked")"; return 1; }
  mv "$unpacked" "$fetched_arrow"
}

# Makes .deps/arrow a link to Arrow's libraries. A build can do without them, so a machine that cannot fetch them is asked
# once only; on CI's it is an error.
provide_arrow() {
  local problem
  if [ -n "${ARROW_DIR:-}" ]; then
    problem=$(arrow_problem "$ARROW_DIR")
    [ -z "$problem" ] || fail "ARROW_DIR=$ARROW_DIR cannot be used: $problem"
    ln -sfn "$(cd "$ARROW_DIR" && pwd)" "$deps/arrow"
  elif [ -d "$fetched_arrow" ] || fetch_arrow; then
    ln -sfn "$(basename "$fetched_arrow")" "$deps/arrow"
  else
    rm -f "$deps/arrow"
    [ "${CI:-}" != true ] || fail "could not fetch pyarrow $arrow_version; see pip's message above"
    say "going on without Arrow: Parquet and Arrow files will be refused (to try again: rm $arrow_stamp)"
  fi
}

# ------------------------------------------------------------------------------------------------------- what is to do

if [ "${1:-}" = --packages ]; then
  missing=()
  for package in "${@:2}"; do
    [ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || missing+=("$package")
  done
  mkdir -p "$work"
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
  exit
fi
fetched_torch=$deps/torch-$torch_version
if [ "${1:-}" = --torch-for ]; then
  fetched_torch+=-$machine
  mkdir -p "$work"
  if [ ! -d "$fetched_torch/torch" ]; then
    { pip_found && have unzip; } || fail "no Python with pip, or no unzip, was found; install python3-pip and unzip"
    fetch_torch cpu
  fi
  echo "$fetched_torch/torch"
  exit
fi
fetched_arrow=$deps/arrow-$arrow_version
if [ "${1:-}" = --arrow-for ]; then
  fetched_arrow+=-$machine
  mkdir -p "$work"
  if [ ! -d "$fetched_arrow" ]; then
    { pip_found && have unzip; } || fail "no Python with pip, or no unzip, was found; install python3-pip and unzip"
    fetch_arrow || fail "could not fetch pyarrow $arrow_version; see pip's message above"
  fi
  echo "$fetched_arrow"
  exit
fi
[ "$(machine_kind)" = cpu ] || fetched_torch+=-cuda

# The stamp stands for libtorch and the tools; the system packages are looked at every time, which takes no time.
key="$(cksum <"${BASH_SOURCE[0]}") TORCH_DIR=${TORCH_DIR:-} $(machine_kind)"
stamp=$deps/setup.stamp
torch_done=no
[ -e "$deps/torch/lib/libtorch_cpu.so" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && torch_done=yes

arrow_stamp=$deps/arrow.stamp
arrow_key="$arrow_version ARROW_DIR=${ARROW_DIR:-}"
arrow_done=no
[ "$(cat "$arrow_stamp" 2>/dev/null)" = "$arrow_key" ] && arrow_done=yes

tool_done() { [ -x "$deps/tools/bin/$1" ] && [ "$(readlink "$deps/tools/bin/$1")" = "../$1-$2/bin/$1" ]; }
tools=()
tool_done clang-format $clang_format_version || tools+=("clang-format $clang_format_version")
[ $want_all = no ] || tool_done clang-tidy $clang_tidy_version || tools+=("clang-tidy $clang_tidy_version")

mkdir -p "$work"
[ $torch_done = yes ] || choose_torch
fetch=no
{ [ $torch_done = no ] && [ -z "$torch_home" ]; } || [ ${#tools[@]} -gt 0 ] && fetch=yes
if [ $arrow_done = no ] && [ -z "${ARROW_DIR:-}" ] && [ ! -d "$fetched_arrow" ]; then fetch=yes; fi
# Distributions with an older CMake get it as a wheel.
if have cmake && ! cmake_found; then fetch=yes; fi

mapfile -t missing < <(missing_packages)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
if [ -z "${CXX:-}" ]; then gcc_found || fail "no g++ of version 12 or newer was found; install one, or set CXX"; fi
if [ $want_all = yes ]; then clang_found || fail "no clang++ of version 16 or newer was found; install one"; fi

if [ $fetch = yes ]; then pip_found || fail "no Python with pip was found; install python3-pip"; fi
cmake_found || fetch_tool cmake $cmake_version
for tool in "${tools[@]}"; do fetch_tool ${tool% *} "${tool#* }"; done
if [ $torch_done = no ]; then
  [ -n "$torch_home" ] || fetch_torch "$(machine_kind)"
  link_torch
  echo "$key" >"$stamp"
fi
if [ $arrow_done = no ]; then
  provide_arrow
  echo "$arrow_key" >"$arrow_stamp"
fi

# cuDNN's front end, headers only: .deps/cudnn-frontend. A build without it has slower attention over packed rows, so
# that a machine which cannot fetch it is only told.
if [ "$(machine_kind)" = cuda ] && [ ! -d "$deps/cudnn-frontend-$cudnn_front_end_version" ]; then
  mkdir -p "$work/front-end"
  if pip_found && have unzip && pip_download "$work/front-end" "nvidia-cudnn-frontend==$cudnn_front_end_version" &&
    unzip -q -DD "$work"/front-end/*.whl 'include/*' -d "$work/front-end/unpacked"; then
    mv "$work/front-end/unpacked" "$deps/cudnn-frontend-$cudnn_front_end_version"
    ln -sfn "cudnn-frontend-$cudnn_front_end_version" "$deps/cudnn-frontend"
  else
    echo "setup: nvidia-cudnn-frontend $cudnn_front_end_version could not be fetched; attention over packed rows will run flash-2" >&2
  fi
fi
