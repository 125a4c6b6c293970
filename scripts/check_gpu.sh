#!/usr/bin/env bash
# check_gpu.sh OUT PART…: what only a machine with a GPU can show; a log (and its exit code) for each part in OUT.
#
#   build      the cuda preset with all tests and benchmarks
#   kernels    every kernel against its CPU twin
#   sanitizer  the same under compute-sanitizer (memory, then races between threads)
#   layouts    the program in every layout, several ranks on this GPU
#   suite      every test but long ones, packages and checks of the tree
#   bandwidth  single kernels against a copy and against PyTorch
#   steps      whole training steps; PEERS: a folder with torch_best.py, hf_train.py, mcore_train.py to run beside
#
# MEGALITH_CUDA_ARCHITECTURES (default 90) and TORCH_DIR choose the GPU and libtorch; MEGALITH_PYTHON the peers' Python;
# CASES (names with commas) and ROUNDS limit `steps`; ONLY (names with commas) limits `bandwidth`.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
[ $# -ge 2 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
shift
bin=build/cuda/bin
export MEGALITH_PYTHON=${MEGALITH_PYTHON:-python3}
cores=$(nproc)
failed=0

build() {
  local settings=(-DMEGALITH_CUDA_ARCHITECTURES="${MEGALITH_CUDA_ARCHITECTURES:-90}")
  [ -z "${TORCH_DIR:-}" ] || settings+=(-DTORCH_DIR="$TORCH_DIR")
  cmake --preset cuda "${settings[@]}" && cmake --build build/cuda --parallel "$cores"
}
kernels() { $bin/ops_test --gtest_filter='*CudaKernel*' --gtest_brief=1; }
sanitizer() {
  # Attention and products are libraries': nothing of ours to look at, and slow. cuBLAS's fp8 kernels (nvjet…) have a hazard
  # of their own.
  local ours='*CudaKernel*-*Attention*:*GroupedProducts*:*LargeProducts*' races
  compute-sanitizer --tool memcheck --error-exitcode 1 $bin/ops_test --gtest_filter="$ours" --gtest_brief=1 || return 1
  races=$(compute-sanitizer --tool racecheck $bin/ops_test --gtest_filter="$ours" --gtest_brief=1 2>&1) ||
    { echo "$races"; return 1; }
  echo "$races"
  ! grep 'Race reported' <<<"$races" | grep -qv nvjet_
}
layouts() { ctest --test-dir build/cuda -L cuda -j 6 --output-on-failure; }
suite() { OMP_NUM_THREADS=1 ctest --test-dir build/cuda -LE 'long|tree|package' -j "$((cores - 2))" --output-on-failure; }
bandwidth() { $bin/kernel_bench --runs 10 ${ONLY:+--only "$ONLY"}; }
steps() {
  local words=(--rounds "${ROUNDS:-2}" --peft bench/peers/gpu_lora.py)
  [ -z "${CASES:-}" ] || words+=(--cases "$CASES")
  [ -z "${PEERS:-}" ] || words+=(--peers "$PEERS/torch_best.py" --hf "$PEERS/hf_train.py" --mcore "$PEERS/mcore_train.py")
  $bin/gpu_bench "${words[@]}"
}

for part in "$@"; do
  case $part in
    build|kernels|sanitizer|layouts|suite|bandwidth|steps) ;;
    *) echo "check_gpu: there is no part \"$part\"; see the head of this file" >&2; exit 2 ;;
  esac
done
for part in "$@"; do
  start=$SECONDS
  "$part" >"$out/$part.log" 2>&1
  code=$?
  echo "check_gpu: $part: exit code $code after $((SECONDS - start)) s" | tee -a "$out/$part.log"
  [ $code -eq 0 ] || failed=1
done
exit $failed
