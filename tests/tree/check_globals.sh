#!/usr/bin/env bash
# State that outlives its owner: no variable in src is global and can change, but for those below. Looked at are variables of
# namespaces and classes, and static or thread_local ones of functions. A constant that owns something that can change, or that
# hides its type behind auto and a lambda, counts as one. (What is made with parentheses from types alone reads like a function.)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# FILE:VARIABLE, each with its reason.
allowed=(
  src/megalith/base/log.cc:log                # there is one stderr
  src/megalith/data/table/arrow_plugin.cc:pool  # Arrow's threads free buffers after the reader that asked for them is gone
  src/megalith/ops/attention/attention_cudnn.cc:cudnn_dlhandle  # the library's handle, which cuDNN's front end expects under this name
  src/megalith/ops/kernel/host_values.cc:copies_queued  # copies are numbered over all threads; the number is for observers only
  src/megalith/nn/activation_offload.cc:engine  # libtorch asks one engine per process for the hooks of saved tensors
  src/megalith/nn/activation_offload.cc:saving  # which pass the thread is in; autograd passes no argument on
  src/megalith/nn/recompute.cc:running_region  # which region the thread runs, for layers that autograd runs a second time
  src/megalith/nn/turns.cc:current_turns      # which turns the thread's forward takes part in; layers keep them for backward
  src/megalith/nn/turns.cc:innermost_aside    # what the thread's pass puts aside before the other one runs
  src/megalith/run/run_context.cc:runtime     # the default Runtime of initialize_megatron; the library takes a context
)

mapfile -t sources < <(tree_files src | grep -E '\.(h|cc|cu|cuh)$')
found=$(mktemp)
trap 'rm -f "$found"' EXIT
[ ${#sources[@]} -eq 0 ] || awk '
  # The declaration without literals, comments and template arguments; its initializer is cut off.
  function bare(text) {
    gsub(/"([^"\\]|\\.)*"/, "\"\"", text)
    sub(/[ \t]*\/\/.*/, "", text)
    while (gsub(/<[^<>]*>/, "", text)) {}
    return text
  }
  function name_of(text) {
    sub(/[ \t]*([={;(\[].*)?$/, "", text)
    sub(/.*[ *&]/, "", text)
    return text
  }
  # const char* p: a pointer that can change.
  function points(text) { return text ~ /\*[ ]*[A-Za-z_]+[ ]*[={;]/ }
  function report(text) { print FILENAME ":" FNR ":" name_of(text) }

  FNR == 1 { raw = 0 }
  # Raw strings hold anything.
  raw { if ($0 ~ /\)[A-Za-z_]*"/) raw = 0; next }
  { line = bare($0) }
  /R"[A-Za-z_]*\(/ && !/R"[A-Za-z_]*\(.*\)[A-Za-z_]*"/ { raw = 1 }

  # static and thread_local, anywhere.
  line ~ /^[ \t]*((inline|extern|static|thread_local|__device__) )*(static|thread_local) / {
    owned = $0
    gsub(/(shared_ptr|unique_ptr)<const /, "", owned)
    owns = owned ~ /(shared_ptr|unique_ptr|make_shared|make_unique)</ || owned ~ / auto [A-Za-z_]+ *= *\[/
    fixed = line ~ /(^|[ \t])constexpr / || (line ~ /(static|thread_local|inline) const / && !points(line) && !owns)
    declared = line
    sub(/[={;].*/, "", declared)
    called = declared ~ /\(/ && declared !~ /\((""|[0-9]|[a-z_.]+[,)])/
    if (!fixed && !called && line !~ /static_assert/) report(line)
    next
  }
  # Namespaces are not indented.
  line ~ /^[A-Za-z_]/ && line !~ /^(__extension__ )?(using|namespace|class|struct|union|enum|template|typedef|return|friend|extern|static_assert|public|private|protected|constexpr|inline constexpr|__constant__)([ :(]|$)/ {
    declared = line
    sub(/[={;].*/, "", declared)
    if (declared ~ /\(/ || line !~ /[={;]/ || declared !~ /[A-Za-z_0-9>*&] +[*&]*[A-Za-z_][A-Za-z_0-9]*(\[[^\]]*\])*[ ]*$/) next
    if (line ~ /^(inline )?const / && !points(line)) next
    report(line)
  }' "${sources[@]}" >"$found"

while IFS=: read -r file line name; do
  [[ " ${allowed[*]} " == *" $file:$name "* ]] ||
    problem "$file:$line" "$name is global and can change; give it an owner, or make it const"
done <"$found"
for entry in "${allowed[@]}"; do
  file=${entry%:*}
  [ ! -e "$file" ] || grep -qE "^$file:[0-9]+:${entry##*:}$" "$found" ||
    problem "$file" "${entry##*:} is allowed in tests/tree/check_globals.sh, and is not there"
done
finish
