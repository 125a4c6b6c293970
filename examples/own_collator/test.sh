#!/usr/bin/env bash
# Fine-tunes a tiny model alone and as eight processes, TP 2 x PP 2 x CP 2, and compares the losses: program, model folder.
set -euo pipefail
program=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
for i in $(seq 16); do  # 4 to 11 tokens, the first two without a label
  ids=$(seq -s, $((i + 5)) $((i + 8 + i % 8))) && labels=-100,-100,$(cut -d, -f3- <<<"$ids")
  echo "{\"input_ids\": [$ids], \"labels\": [$labels]}"
done >"$work/data.jsonl"
losses() {
  "$program" --use_cpu --finetuning_type=full --model_name_or_path="$model" --dataset="$work/data.jsonl" --max_steps=5 \
    --learning_rate=1e-2 --logging_steps=1 --save_strategy=no --per_device_train_batch_size=2 \
    --gradient_accumulation_steps=4 --calculate_per_token_loss --output_dir="$work/out" --overwrite_output_dir "$@"
}
losses >"$work/alone"
losses --nproc=8 --tp=2 --pp=2 --cp=2 >"$work/spread"
paste -d' ' "$work/alone" "$work/spread"
awk 'NR == FNR { alone[FNR] = $4; next }
     { difference = $4 - alone[FNR]; if (difference < 0) difference = -difference }
     !($4 > 0) || difference > 1e-5 * alone[FNR] { print "step " FNR ": " $4 ", alone " alone[FNR]; wrong = 1 }
     END { exit wrong || FNR != 5 }' "$work/alone" "$work/spread" ||
  { echo "eight processes do not give the losses of one" >&2; exit 1; }

losses --learning_rate=1e-12 >"$work/still"
! cmp -s "$work/alone" "$work/still" || { echo "the optimizer changes nothing" >&2; exit 1; }

# The files of `megalith train` are there, too; the option report names options without effect.
[ -s "$work/out/metrics.jsonl" ] && [ -s "$work/out/model.safetensors" ] || { ls "$work/out" >&2; exit 1; }

code=0
message=$(losses --stage=ppo --dataset=no-such-file.jsonl 2>&1) || code=$?
[ $code -eq 2 ] && grep -q "stage" <<<"$message" && grep -q "no-such-file" <<<"$message" || { echo "bad input: $code $message" >&2; exit 1; }
