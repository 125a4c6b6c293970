#!/usr/bin/env bash
# model.sh FAMILY FOLDER: a model that has read 400 little stories, as a Hugging Face folder; it takes some seconds. The
# tutorials start from it where others start from a download. FAMILY: llama, qwen3 or qwen3_moe. A model that is there is kept.
set -euo pipefail
family=${1:?model.sh FAMILY FOLDER} folder=${2:?model.sh FAMILY FOLDER}
if [ -e "$folder/model.safetensors" ] && grep -q "\"model_type\": *\"$family\"" "$folder/config.json"; then
  echo "$folder is there already"
  exit
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/stories.sh" >"$work/stories.jsonl"
megalith data train-tokenizer "$work/stories.jsonl" --vocab_size 512 --output "$work/shape"
"$here/shape.sh" "$family" >"$work/shape/config.json"
megalith train --stage pt --do_train --finetuning_type full --train_from_scratch --model_name_or_path "$work/shape" \
  --dataset "$work/stories.jsonl" --cutoff_len 128 --per_device_train_batch_size 8 --max_steps 120 --learning_rate 5e-3 \
  --lr_scheduler_type cosine --warmup_steps 10 --logging_steps 40 --save_strategy no --output_dir "$folder"
