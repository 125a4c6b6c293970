#!/usr/bin/env bash
# choose_preset_test.sh ROOT CMAKE: scripts/choose_preset.sh and cmake/CudaArchitectures.cmake on made-up machines: folders with
# device files, nvidia-smi, nvcc and libtorch.
set -euo pipefail

root=$1 cmake=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PRESET TORCH_DIR CUDACXX CUDA_HOME MEGALITH_CPU_ONLY MEGALITH_CUDA_ARCHITECTURES
mkdir -p "$folder"/{bin,dev,deps/torch/lib,cpu-torch/lib,deps/nvidia/nccl/include}
export MEGALITH_DEVICE_DIR=$folder/dev MEGALITH_DEPS_DIR=$folder/deps CUDA_HOME=$folder/no-toolkit
export PATH=$folder/bin:$PATH

# program NAME: an executable in PATH, from stdin.
program() { { echo '#!/bin/bash'; cat; } >"$folder/bin/$1"; chmod +x "$folder/bin/$1"; }
# gpus CAPABILITY…: a machine with these GPUs.
gpus() {
  local number=0 capability
  rm -f "$folder"/dev/*
  touch "$folder/dev/nvidiactl"
  for capability in "$@"; do touch "$folder/dev/nvidia$number"; number=$((number + 1)); done
  program nvidia-smi <<END
case \$* in *compute_cap*) printf '%s\n' $* ;; *name*) for gpu in $*; do echo "NVIDIA Test"; done ;; *) exit 1 ;; esac
END
}
nvcc() { program nvcc <<<"echo 'Cuda compilation tools, release $1, V$1.48'"; }
# libtorch MAJOR: of this CUDA.
libtorch() { touch "$folder/deps/torch/lib/libtorch_cuda.so"; program readelf <<<"echo '(NEEDED) Shared library: [libcudart.so.$1]'"; }

# chooses PRESET PART… [-- ARGUMENT…]: the preset, and parts of the one line that says why.
chooses() {
  local wanted=$1 said parts=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  said=$("$root/scripts/choose_preset.sh" "$@" 2>"$folder/why")
  [ "$said" = "$wanted" ] || { echo "preset $said instead of $wanted: $(cat "$folder/why")"; exit 1; }
  for part in "${parts[@]}"; do
    grep -qF -e "$part" "$folder/why" || { echo "not said: \"$part\" but: $(cat "$folder/why")"; exit 1; }
  done
  [ "$(wc -l <"$folder/why")" -le 1 ] || { echo "more than one line: $(cat "$folder/why")"; exit 1; }
}
# architectures WANTED [SETTING…]: what CMake compiles kernels for.
architectures() {
  local wanted=$1
  shift
  cat >"$folder/architectures.cmake" <<END
set(MEGALITH_CUDA ON)
include($root/cmake/CudaArchitectures.cmake)
message("kernels for \${MEGALITH_CUDA_ARCHITECTURES}")
END
  "$cmake" "$@" -P "$folder/architectures.cmake" >"$folder/said" 2>&1
  grep -qx "kernels for $wanted" "$folder/said" || { echo "not kernels for $wanted:"; cat "$folder/said"; exit 1; }
}

program nvidia-smi <<<'exit 9'
chooses release "no NVIDIA GPU"
architectures '80;90;100'
# The files of the driver itself are not GPUs.
touch "$folder/dev/nvidiactl" "$folder/dev/nvidia-uvm"
chooses release "no NVIDIA GPU"

gpus 9.0
libtorch 13
program nvcc <<<'exit 1'
rm "$folder/bin/nvcc"
if ! command -v nvcc >/dev/null; then chooses release "NVIDIA Test" "no nvcc was found" "install the CUDA toolkit 13" CUDACXX; fi
nvcc 12.4
chooses release "$folder/bin/nvcc is of CUDA 12.4 and libtorch of CUDA 13" "CUDA toolkit 13"
nvcc 13.0
if [ ! -e /usr/include/nccl.h ]; then chooses release "nccl.h was found neither"; fi
touch "$folder/deps/nvidia/nccl/include/nccl.h"
chooses cuda "NVIDIA Test" "nvcc 13.0" "PRESET=release"
architectures 90

# The user decides.
chooses release -- release
chooses edit -- edit
[ ! -s "$folder/why" ] || { echo "PRESET needs no reason: $(cat "$folder/why")"; exit 1; }
MEGALITH_CPU_ONLY=1 chooses release "MEGALITH_CPU_ONLY is 1"
TORCH_DIR=$folder/cpu-torch chooses release "TORCH_DIR ($folder/cpu-torch) has no CUDA part" "make setup"
architectures 75 -DMEGALITH_CUDA_ARCHITECTURES=75

# Several GPUs, each kind once; one of them too old.
gpus 10.0 9.0 9.0
chooses cuda "3 x NVIDIA Test"
architectures '90;100'
gpus 9.0 7.5
chooses release "compute capability 7.5" "8.0 or newer"

rm "$folder/deps/torch/lib/libtorch_cuda.so"
gpus 9.0
chooses release "the libtorch in $folder/deps/torch has no CUDA part" "TORCH_DIR"
