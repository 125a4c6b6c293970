#!/usr/bin/env bash
# run_commands.sh MEGALITH ROOT FILE…: runs every command of the pages (docs/*.md, README.md) or of an example's comments,
# in order, in one folder that has what they name: examples, model, corpus.jsonl, my_chats.jsonl, pairs.jsonl, run.yaml, …
# tests/docs/commands.txt says what is not simply run and expected to end with 0; a command of another program has to be
# listed there. A command that ends with & runs beside the next one, and has to end with 0 as well. Where the page shows an error
# below a command (`megalith: …`), it has to end with 2 and to say that line, up to an ellipsis.
set -euo pipefail
shopt -s inherit_errexit

megalith=$1
root=$(cd "$2" && pwd)
shift 2
rules=$root/tests/docs/commands.txt
programs='megalith|bash|echo|build/release/bin/[a-z_]+|make|cmake|ctest|ninja|torchrun|srun|sbatch|mpirun|hf|wandb|pip|apt-get|git|python3?'
settings='([A-Z_]+=[^ ]+ )*'
tab=$'\t'

# "LINE<TAB>COMMAND<TAB>ERROR" for each: in fenced blocks with or without `$ `, over ends of lines after \, without # comments.
commands_of() {
  case $1 in
    *.md) awk '/^ *```/ { fenced = !fenced; next } fenced { print NR "\t" $0 }' "$1" ;;
    *) awk -v programs="  $settings($programs) " '/^#/ && match($0, programs) { print NR "\t" substr($0, RSTART + 2) }' "$1" ;;
  esac | awk -F '\t' -v programs="^$settings($programs) " '
    function flush(error) { if (ready != "") print ready "\t" error; ready = "" }
    { line = $0; sub(/^[0-9]+\t/, "", line); sub(/^ *(\$ )?/, "", line); flush(line ~ /^megalith: / ? line : "") }
    open { command = command " " line }
    !open && line ~ programs { command = line; open = 1; number = $1 }
    open && command ~ /\\$/ { sub(/ *\\$/, "", command); next }
    open { sub(/ +# .*/, "", command); sub(/ +\(.*\)$/, "", command); ready = number "\t" command; open = 0 }
    END { flush("") }'
}

# How the command is treated, and what of it is changed: the first rule whose pattern fits.
rule_for() {
  local how pattern change
  while IFS=$tab read -r how pattern change; do
    case $how in '' | '#'*) continue ;; esac
    if [[ $1 =~ $pattern ]]; then printf '%s\t%s\n' "$how" "$change"; return; fi
  done <"$rules"
  printf 'run\t\n'
}

make_sandbox() {
  local i
  mkdir -p out other/out data work build/release
  ln -s "$root/examples" examples
  ln -s "$(dirname "$megalith")" build/release/bin
  for ((i = 0; i < 60; i++)); do
    printf '{"text": "The king number %d said: what is it that we plough, and who are they that eat? Line %d of the play."}\n' $i $((i * 7))
  done >corpus.jsonl
  for ((i = 0; i < 24; i++)); do
    printf '{"messages": [{"role": "user", "content": "Question %d?"}, {"role": "assistant", "content": "Answer %d."}]}\n' $i $i
  done >my_chats.jsonl
  for ((i = 0; i < 24; i++)); do
    printf '{"prompt": "Question %d?", "chosen": "Answer %d.", "rejected": "No."}\n' $i $i
  done >pairs.jsonl
  cp corpus.jsonl sample.jsonl
  cp corpus.jsonl more.jsonl
  cp corpus.jsonl a.jsonl
  cp corpus.jsonl b.jsonl
  "$megalith" data train-tokenizer corpus.jsonl --vocab_size 300 --output model >/dev/null 2>&1
  cat >model/config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
 "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 4, "max_position_embeddings": 8192,
 "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
 "mlp_bias": false, "initializer_range": 0.02, "bos_token_id": null, "eos_token_id": 0, "torch_dtype": "float32"}
JSON
  ln -s model DIR
  ln -s model MODEL
  cp -r "$root/tests/data/golden/hf/llama" tiny-llama
  cp tiny-llama/golden.safetensors batch.safetensors
  cat >run.yaml <<'YAML'
stage: pt
do_train: true
finetuning_type: full
train_from_scratch: true
model_name_or_path: model
dataset: corpus.jsonl
cutoff_len: 32
per_device_train_batch_size: 1
max_steps: 4
learning_rate: 0.001
logging_steps: 1
save_steps: 2
output_dir: run_out
YAML
}

# The `…` of a command stands for what every run has.
filled_in() {
  local text=${1/ …/ --model_name_or_path model --dataset my_chats.jsonl --finetuning_type full --output_dir dry}
  text=${text// …/}
  case $text in *--nproc*) ;; *) text+=" --nproc 8" ;; esac
  echo "$text --dry_run"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=$work/list
for page in "$@"; do
  commands_of "$root/$page" | sed "s|^|$page\t|"
done >"$list"
cd "$work"
mkdir bin sandbox
ln -s "$megalith" bin/megalith
export PATH="$work/bin:$PATH" MEGALITH_USE_CPU=1 OMP_NUM_THREADS=1
# first_hour.sh has a home that cannot be written; elsewhere each run of this script has its own.
[ "${HOME:-}" = / ] || export XDG_CACHE_HOME="$work/cache" HOME="$work"
cd sandbox
[ ! -s "$list" ] || make_sandbox

failures=0
# report LINE HOW COMMAND CODE EXPECTED OUTPUT
report() {
  if [ "$4" -eq "$5" ]; then echo "$page:$1: $2: $3"; return; fi
  echo "$page:$1: exit code $4 instead of $5: $3"
  sed 's/^/    /' "$6" | tail -n 15
  failures=$((failures + 1))
}

beside=
while IFS=$tab read -r page line command error <&3; do
  IFS=$tab read -r how change < <(rule_for "$command")
  text=$command
  expected=0
  if [ "$how" = not ]; then echo "$page:$line: not run ($change): $command"; continue; fi
  [ -z "$error" ] || expected=2
  if [ -n "${change:-}" ]; then text=$(sed -E "$change" <<<"$text"); fi
  [ "$how" != dry ] || text=$(filled_in "$text")
  if [[ $text == *' &' ]]; then
    timeout 100 bash -c "${text% &}" </dev/null >"$work/beside" 2>&1 &
    beside=$! beside_line=$line beside_text=$text
    continue
  fi
  rc=0
  timeout 100 bash -c "$text" </dev/null >output 2>&1 || rc=$?
  report "$line" "$how" "$text" $rc $expected output
  if [ -n "$error" ] && ! grep -qF -e "${error%%…*}" output; then
    echo "$page:$line: does not say: $error"
    sed 's/^/    /' output | tail -n 5
    failures=$((failures + 1))
  fi
  if [ -n "$beside" ]; then
    rc=0
    wait "$beside" || rc=$?
    report "$beside_line" run "$beside_text" $rc 0 "$work/beside"
    beside=
  fi
done 3<"$list"
exit $((failures > 0))
