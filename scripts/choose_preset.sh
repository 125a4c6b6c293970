#!/usr/bin/env bash
# choose_preset.sh [PRESET]: prints the preset that `make build`, `make demo` and `make bench` use: PRESET where it is given;
# otherwise `cuda` on a machine with an NVIDIA GPU and everything that its build needs, and `release` on any other. One line on
# stderr says which and why. With a GPU that cannot be built for, it says what is missing and what to do about it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/gpu.sh"
if [ -n "${1:-}" ]; then echo "$1"; exit 0; fi
torch=${TORCH_DIR:-${MEGALITH_DEPS_DIR:-$root/.deps}/torch}
oldest_kernels=80  # the first GPU that the kernels are written for

# choose PRESET REASON
choose() {
  echo "build: preset $1, $2" >&2
  echo "$1"
  exit 0
}

if [ "${MEGALITH_CPU_ONLY:-0}" = 1 ]; then choose release "for the CPU: MEGALITH_CPU_ONLY is 1"; fi
if [ "$(gpu_count)" -eq 0 ]; then choose release "for the CPU: this machine has no NVIDIA GPU"; fi

# Parts that a build for this GPU lacks, each with its remedy.
lacking=()
cuda=$(torch_cuda_version "$torch")
nvcc=$(find_nvcc) || nvcc=
if [ -z "$cuda" ] && [ -n "${TORCH_DIR:-}" ]; then
  lacking+=("the libtorch in TORCH_DIR ($TORCH_DIR) has no CUDA part; unset TORCH_DIR and run make setup, which fetches one that has")
elif [ -z "$cuda" ]; then
  lacking+=("the libtorch in $torch has no CUDA part; set TORCH_DIR to the torch folder of a torch that was installed with CUDA")
fi
if [ -z "$nvcc" ]; then
  lacking+=("no nvcc was found; install the CUDA toolkit ${cuda:-13} and put its nvcc into PATH, or name it in CUDACXX")
elif [ -n "$cuda" ] && [[ $(nvcc_version "$nvcc") != "$cuda".* ]]; then
  lacking+=("$nvcc is of CUDA $(nvcc_version "$nvcc") and libtorch of CUDA $cuda; install the CUDA toolkit $cuda and name its nvcc in CUDACXX")
fi
if [ -n "$cuda" ] && [ -n "$nvcc" ]; then
  found=no
  for folder in "$(readlink -f "$torch")/../nvidia/nccl/include" "$(dirname "$(readlink -f "$nvcc")")/../include" /usr/include \
                "/usr/include/$(uname -m)-linux-gnu"; do
    if [ -e "$folder/nccl.h" ]; then found=yes; fi
  done
  [ $found = yes ] || lacking+=("nccl.h was found neither beside libtorch nor in the CUDA toolkit; install nvidia-nccl-cu$cuda (pip) or libnccl-dev")
fi
oldest=$(oldest_gpu)
if [ -n "$oldest" ] && [ "$oldest" -lt $oldest_kernels ]; then
  lacking+=("a GPU has compute capability ${oldest%?}.${oldest: -1}, and the kernels need ${oldest_kernels%?}.${oldest_kernels: -1} or newer")
fi

gpus=$(gpu_names)
if [ ${#lacking[@]} -eq 0 ]; then
  choose cuda "for the GPU of this machine ($gpus; nvcc $(nvcc_version "$nvcc")); PRESET=release builds for the CPU"
fi
joined=${lacking[0]}
for reason in "${lacking[@]:1}"; do joined+=". Also, $reason"; done
choose release "for the CPU, although this machine has a GPU ($gpus): $joined"
