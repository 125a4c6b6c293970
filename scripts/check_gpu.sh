#!/usr/bin/env bash
# check_gpu.sh OUT PART…: what only a machine with a GPU can show; a log (and its exit code) for each part in OUT.
#
#   build      the cuda preset with all tests and benchmarks
#   kernels    every kernel against its CPU twin
#   sanitizer  the same under compute-sanitizer (memory, then races between threads)
#   layouts    the program in every layout, several ranks on this GPU over Gloo
#   nccl       the same and more over NCCL, each rank a "machine" of its own; then faults; a table of the differences at the end
#   suite      every test but long ones, packages and checks of the tree
#   bandwidth  single kernels against a copy and against PyTorch
#   steps      whole training steps; PEERS: a folder with torch_best.py, hf_train.py, mcore_train.py to run beside
#
# MEGALITH_CUDA_ARCHITECTURES (default: this GPU's) and TORCH_DIR choose the GPU and libtorch; MEGALITH_PYTHON the peers' Python;
# CASES (names with commas) and ROUNDS limit `steps`; ONLY (names with commas) limits `bandwidth`. For `nccl`: RANKS (16), how many
# ranks run at once; T (100), seconds of a job; NCCL_ONLY, a regular expression for its tests; MPS=1 starts a CUDA MPS daemon for all but
# the faults, so that ranks run side by side instead of in turns.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
[ $# -ge 2 ] || { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
shift
bin=build/cuda/bin
export MEGALITH_PYTHON=${MEGALITH_PYTHON:-python3}
cores=$(nproc)
failed=0

build() {
  local settings=()
  [ -z "${MEGALITH_CUDA_ARCHITECTURES:-}" ] || settings+=(-DMEGALITH_CUDA_ARCHITECTURES="$MEGALITH_CUDA_ARCHITECTURES")
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

# Prints what the lines `nccl-case NAME TRANSPORT RANKS PRECISION LOSS NORM WEIGHTS SECONDS FIRST_STEP` and their like say.
nccl_table() {
  awk '
    $1 == "nccl-case" {
      key = $3 " " $5
      count[key]++; total++
      for (i = 6; i <= 8; ++i) if ($i + 0 > worst[key, i] + 0 || $i == "inf") { worst[key, i] = $i; which[key, i] = $2 }
      if ($4 > most) most = $4
      if ($2 ~ /^(dp2|tp2|pp2|cp2_p2p|tp2_pp2|tp2_pp2_dp2)$/) first = first sprintf("  %-14s %s ranks, %s s\n", $2, $4, $10)
    }
    $1 == "nccl-fault" || $1 == "nccl-memory" || $1 == "nccl-command" { lines = lines "  " $0 "\n" }
    END {
      printf "\n%d cases, up to %d ranks; the largest difference from one rank, and where:\n", total, most
      printf "  %-10s %-6s %6s  %-34s %-34s %s\n", "transport", "type", "cases", "loss", "gradient norm", "exported tensors"
      for (key in count) {
        split(key, part, " ")
        printf "  %-10s %-6s %6d  ", part[1], part[2], count[key]
        for (i = 6; i <= 8; ++i) printf "%-34s ", worst[key, i] " (" which[key, i] ")"
        printf "\n"
      }
      printf "seconds to the first step:\n%sothers:\n%s", first, lines
    }' "$@"
}
nccl() {
  local words=(--test-dir build/cuda --output-on-failure) code=0 log=build/cuda/Testing/Temporary/LastTest.log
  [ -z "${NCCL_ONLY:-}" ] || words+=(-R "$NCCL_ONLY")
  export MEGALITH_NCCL_LIMIT=${T:-100}
  if [ "${MPS:-0}" = 1 ]; then
    export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    mkdir -p "$out/mps" && nvidia-cuda-mps-control -d || return 1
  fi
  ctest "${words[@]}" -L '^nccl$' -LE nccl_faults -j "${RANKS:-16}" || code=1
  cp "$log" "$out/nccl_tests.log"
  if [ "${MPS:-0}" = 1 ]; then
    echo quit | nvidia-cuda-mps-control
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
  # Faults watch the clock: by themselves, and few at a time.
  ctest "${words[@]}" -L nccl_faults -j 8 || code=1
  cat "$log" >>"$out/nccl_tests.log"
  nccl_table "$out/nccl_tests.log"
  return $code
}
suite() { OMP_NUM_THREADS=1 ctest --test-dir build/cuda -LE 'long|tree|package|nccl' -j "$((cores - 2))" --output-on-failure; }
bandwidth() { $bin/kernel_bench --runs 10 ${ONLY:+--only "$ONLY"}; }
steps() {
  local words=(--rounds "${ROUNDS:-2}" --peft bench/peers/gpu_lora.py)
  [ -z "${CASES:-}" ] || words+=(--cases "$CASES")
  [ -z "${PEERS:-}" ] || words+=(--peers "$PEERS/torch_best.py" --hf "$PEERS/hf_train.py" --mcore "$PEERS/mcore_train.py")
  $bin/gpu_bench "${words[@]}"
}

for part in "$@"; do
  case $part in
    build|kernels|sanitizer|layouts|nccl|suite|bandwidth|steps) ;;
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
