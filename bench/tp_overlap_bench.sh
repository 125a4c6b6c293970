#!/usr/bin/env bash
# How much of the tensor-parallel traffic a step shows, with its collectives whole and in slices (tp_comm_overlap): rehearsals of
# one rank on this machine (docs/rehearse.md). Needs no other process; with a GPU the numbers are those of a cluster's rank.
#   bench/tp_overlap_bench.sh build/release/bin/megalith [OPTIONS OF REHEARSE]
# The rank is that of llama-3-70b, tp 8 with sequence parallelism, in the middle of 8 pipeline stages (10 layers), 8192 tokens in a
# micro-batch and 8 of them in a step. MODEL=DIR takes another config.json; options override the layout. One JSON line each:
#   slices   "none" (whole), "by size", or the number given to tp_comm_overlap_slices
#   tp_s     how long the collectives of the group tp last, and tp_exposed_s how long the rank stood still for them
#   hidden   the share of that time beside which something was computed
set -euo pipefail

program=$(realpath "${1:?the program megalith}")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ -z ${MODEL:-} ]]; then
  MODEL=$work/model
  mkdir "$MODEL"
  cat > "$MODEL/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
 "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false,
 "hidden_act": "silu", "torch_dtype": "bfloat16"}
JSON
fi

# NAME FILE: a number of the report.
number() { tr -d ' \n' < "$2" | grep -o "\"$1\":[-0-9.e+]*" | head -n 1 | cut -d: -f2; }

# SLICES OPTIONS…: rehearses and prints the line.
rehearse() {
  local slices=$1 report=$work/report.json
  shift
  "$program" rehearse --model "$MODEL" --world-size 64 --tp 8 --pp 8 --stage 4 --cutoff_len 8192 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --bf16 --sequence_parallel --json "$@" > "$report"
  local exposed lasts
  exposed=$(tr -d ' \n' < "$report" | grep -o '"tp":{"exposed_s":[-0-9.e+]*' | cut -d: -f3)
  lasts=$(tr -d ' \n' < "$report" | grep -o '"group":"tp"[^}]*' | grep -o '"lasts_s":[-0-9.e+]*' | cut -d: -f2 |
    awk '{ sum += $1 } END { printf "%.9g", sum }')
  awk -v slices="$slices" -v step="$(number step_s "$report")" -v peak="$(number peak "$report")" -v lasts="$lasts" \
    -v exposed="$exposed" 'BEGIN {
      printf "{\"bench\":\"tp_overlap\",\"slices\":\"%s\",\"step_s\":%.6f,\"tp_s\":%.6f,\"tp_exposed_s\":%.6f,\"hidden\":%.3f,\"peak_bytes\":%d}\n",
        slices, step, lasts, exposed, (lasts > 0 ? 1 - exposed / lasts : 0), peak
    }'
}

rehearse none "$@"
rehearse "by size" --tp_comm_overlap "$@"
for slices in 2 4 8; do rehearse "$slices" --tp_comm_overlap --tp_comm_overlap_slices "$slices" "$@"; done
