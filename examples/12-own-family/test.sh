#!/usr/bin/env bash
# Trains a model of the example's own family on one rank and on two, which must agree; a wrong config.json is named.
set -euo pipefail
program=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/make_data.sh" >"$work/data.jsonl"
options=(--use_cpu --finetuning_type=full --model_name_or_path="$here" --dataset="$work/data.jsonl" --val_size=16
  --max_steps=20 --learning_rate=5e-3 --logging_steps=5 --save_strategy=no --per_device_train_batch_size=8
  --calculate_per_token_loss)
one=$("$program" "${options[@]}" --output_dir="$work/one")
echo "$one"
grep -q "step 20: loss" <<<"$one"
grep -q '"blocks.3.qkv"' "$work/one/model.safetensors"
grep -q '"model_type": "nano"' "$work/one/config.json"

export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((32600 + RANDOM % 160)) OMP_NUM_THREADS=1
RANK=1 LOCAL_RANK=1 "$program" "${options[@]}" --tp=2 --output_dir="$work/two" &
two=$(RANK=0 LOCAL_RANK=0 "$program" "${options[@]}" --tp=2 --output_dir="$work/two")
wait $!
unset WORLD_SIZE
# To three digits: what follows is rounding.
shorten() { sed -E 's/read back from [^ ]*/read back/; s/([0-9]\.[0-9]{2})[0-9]+/\1/'; }
diff <(shorten <<<"$one") <(shorten <<<"$two")

mkdir "$work/bad"
sed 's/"dim": 64/"dim": 66/' "$here/config.json" >"$work/bad/config.json"
code=0
message=$("$program" "${options[@]}" --model_name_or_path="$work/bad" --output_dir="$work/three" 2>&1) || code=$?
[ $code -ne 0 ] && grep -q '"heads" is 4 (an integer); it must divide dim' <<<"$message" ||
  { echo "bad input: $code $message" >&2; exit 1; }
