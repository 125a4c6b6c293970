# gpu.sh: what a script can learn about NVIDIA GPUs and CUDA without loading any of CUDA's libraries. To be sourced.
#
#   MEGALITH_CPU_ONLY=1  the machine is treated as if it had no GPU
#   MEGALITH_DEVICE_DIR  where device files are looked for in place of /dev (for tests)

# gpu_count: prints how many GPUs there are. Device files count first, because a container may have nvidia3 alone, or none
# although the driver of its host lists some; where the driver makes no device files (WSL), nvidia-smi is asked.
gpu_count() {
  local count=0 name
  if [ "${MEGALITH_CPU_ONLY:-0}" = 1 ]; then echo 0; return; fi
  for name in "${MEGALITH_DEVICE_DIR:-/dev}"/nvidia*; do
    if [[ ${name##*/} =~ ^nvidia[0-9]+$ ]]; then count=$((count + 1)); fi
  done
  if [ $count -eq 0 ] && command -v nvidia-smi >/dev/null; then
    count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || count=0
  fi
  echo "$count"
}

# gpu_names: "NVIDIA H200", "2 x NVIDIA H200", "NVIDIA A100, NVIDIA T4"; "NVIDIA GPU" where nvidia-smi does not answer.
gpu_names() {
  local names
  names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c |
    awk '{ n = $1; sub(/^ *[0-9]+ /, ""); printf "%s%s", (NR > 1 ? ", " : "") (n > 1 ? n " x " : ""), $0 }') || names=
  echo "${names:-NVIDIA GPU}"
}

# oldest_gpu: the lowest compute capability of this machine's GPUs as 80, 90, …; nothing where nvidia-smi does not answer.
oldest_gpu() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -xE '[0-9]+' | sort -n | head -n 1 || true
}

# find_nvcc: prints the nvcc to use: CUDACXX, the one in PATH, or the toolkit's usual place. Fails when there is none.
find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    if [ -n "$candidate" ] && command -v "$candidate"; then return 0; fi
  done
  return 1
}

# nvcc_version NVCC: 13.0
nvcc_version() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }

# torch_cuda_version TORCH_DIR: the major version of CUDA that this libtorch was built with; nothing when it has no CUDA part.
torch_cuda_version() {
  [ -e "$1/lib/libtorch_cuda.so" ] || return 0
  readelf -d "$1/lib/libtorch_cuda.so" 2>/dev/null | sed -n 's/.*libcudart\.so\.\([0-9]*\).*/\1/p'
}
