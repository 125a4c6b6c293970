#!/usr/bin/env bash
# Runs the example as one process and as four.
set -euo pipefail
program=$1
grep -q "rank 0: tp 0 of 1" <<<"$("$program" --use_cpu)"

export WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((31000 + RANDOM % 800)) OMP_NUM_THREADS=1
out=$(for rank in 1 2 3 0; do RANK=$rank LOCAL_RANK=$rank "$program" --use_cpu --tp=2 --pp=2 & done; wait)
echo "$out"
grep -q "rank 3: tp 1 of 2, pp 1 of 2, dp 0 of 1; sum of the ranks in my tp group: 5" <<<"$out"
unset WORLD_SIZE

code=0
"$program" --tensor_model_paralel_size=2 2>/dev/null || code=$?
[ $code -eq 2 ]
