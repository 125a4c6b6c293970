#!/usr/bin/env bash
# Fine-tunes a tiny model on tokens that are there already: program, model folder.
set -euo pipefail
program=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq 16); do echo "{\"input_ids\": [5, $((i + 6)), 7, 8, 9], \"labels\": [5, $((i + 6)), 7, 8, 9]}"; done >"$work/data.jsonl"
out=$("$program" --use_cpu --finetuning_type=full --model_name_or_path="$model" --dataset="$work/data.jsonl" \
  --output_dir="$work/out" --max_steps=5 --learning_rate=1e-3 --logging_steps=1 --save_strategy=no \
  --per_device_train_batch_size=4)
echo "$out"
grep -q "step 5: loss" <<<"$out"
[ -s "$work/out/config.json" ] && [ -s "$work/out/model.safetensors" ]
