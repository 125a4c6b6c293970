#!/usr/bin/env bash
# Runs the example: it learns to count, also as two processes, and refuses what it does not know.
set -euo pipefail
program=$1
out=$("$program" --train-iters=40)
echo "$out"
first=$(sed -n 's/^step 1: plain loss //p' <<<"$out")
last=$(sed -n 's/^test: plain loss //p' <<<"$out")
awk -v first="$first" -v last="$last" 'BEGIN { exit !(first > 3 && last < 1.5) }' ||
  { echo "the loss went from $first to $last" >&2; exit 1; }

export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((31800 + RANDOM % 800)) OMP_NUM_THREADS=1
RANK=1 LOCAL_RANK=1 "$program" --train-iters=3 --pipeline-model-parallel-size=2 &
RANK=0 LOCAL_RANK=0 "$program" --train-iters=3 --pipeline-model-parallel-size=2
wait $!
unset WORLD_SIZE

code=0
message=$("$program" --trian-iters=3 2>&1) || code=$?
[ $code -eq 2 ] && grep -q "train_iters" <<<"$message" || { echo "bad input: $code $message" >&2; exit 1; }
