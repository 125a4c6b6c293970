#!/usr/bin/env bash
# Trains a model with the example's own layer alone and as four processes, TP 2 x PP 2, and compares the losses, also
# those of the exported model when it is read back; looks at the names in the files; slices of sequences are refused.
set -euo pipefail
program=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
"$here/../12-own-family/make_data.sh" >"$work/data.jsonl"
losses() {
  local out=$1
  shift
  "$program" --use_cpu --finetuning_type=full --train_from_scratch --model_name_or_path="$here" --dataset="$work/data.jsonl" --val_size=16 \
    --max_steps=12 --optimizer=sgd --learning_rate=0.5 --lr_scheduler_type=constant \
    --save_strategy=no --per_device_train_batch_size=4 --gradient_accumulation_steps=2 --calculate_per_token_loss \
    --output_dir="$work/$out" "$@"
}
losses one >"$work/alone"
losses four --nproc=4 --tp=2 --pp=2 --sequence_parallel --recompute_granularity=full --recompute_method=uniform \
  --recompute_num_layers=1 >"$work/spread"
cat "$work/alone" "$work/spread"
awk '{ mean[NR] = $3 + 0; held_out[NR] = $9 + 0 }
     function far(a, b) { return a > b + 1e-5 * b || a < b - 1e-5 * b }
     END { exit NR != 2 || !(held_out[1] > 0 && held_out[1] < mean[1] - 0.1) || far(mean[2], mean[1]) ||
                far(held_out[2], held_out[1]) }' "$work/alone" "$work/spread" ||
  { echo "four processes do not give the losses of one, or nothing is learnt" >&2; exit 1; }

# Every second layer has the convolution, the others attention; both runs write the same tensors.
for name in layers.0.conv.in_proj layers.0.conv.conv layers.2.conv.out_proj layers.1.self_attn.q_proj; do
  for out in one four; do
    grep -q "\"model.$name.weight\"" "$work/$out/model.safetensors" || { echo "no $name in $out" >&2; exit 1; }
  done
done
! grep -q '"model.layers.0.self_attn' "$work/one/model.safetensors" || { echo "attention in layer 0" >&2; exit 1; }
grep -q '"conv_kernel": 3' "$work/one/config.json"

code=0
message=$(losses none --nproc=2 --cp=2 2>&1) || code=$?
[ $code -eq 2 ] && grep -q "context_parallel_size 2 splits sequences, and a short convolution reads" <<<"$message" ||
  { echo "bad input: $code $message" >&2; exit 1; }
