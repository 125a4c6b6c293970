#!/usr/bin/env bash
# Who may include whom. A module includes only itself and modules before it in the list, and its folders do not include each
# other in a circle; an *_internal.h stays in its module (whose tests may look); a .cu file has no ATen or torch header (50 s to
# compile); a header has no <torch/torch.h> (20 s in every file that includes it) and starts with #pragma once. Between config
# and run nobody takes what a user wrote: of config only enums.h is included, the words that options and settings share. The
# fuzzers, which are seldom built, name sources that exist.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# docs/architecture.md explains each.
modules=(base io layout config comm parallel ops nn hf peft model pipeline inference optim checkpoint tokenizer media data train observe plan run cli)

rank() {
  local i
  for i in "${!modules[@]}"; do
    if [ "${modules[$i]}" = "$1" ]; then echo "$i"; return; fi
  done
  echo -1
}

# src/megalith/CMakeLists.txt lists the modules that exist, in that order.
previous=-1
while read -r line name; do
  number=$(rank "$name")
  if [ "$number" -lt 0 ]; then problem "src/megalith/CMakeLists.txt:$line" "$name is no module of the list"; continue; fi
  [ "$number" -gt "$previous" ] || problem "src/megalith/CMakeLists.txt:$line" "$name comes before the module above it"
  previous=$number
done < <(sed -n 's/^add_subdirectory(\([a-z_0-9]*\)).*/\1/p' src/megalith/CMakeLists.txt | grep -n . | tr ':' ' ')
for folder in src/megalith/*/; do
  name=$(basename "$folder")
  [ "$(rank "$name")" -ge 0 ] || problem "src/megalith/$name" "is no module of the list (${modules[*]})"
done

mapfile -t sources < <(tree_files src tests bench | grep -E '\.(h|cc|cu|cuh)$')
[ ${#sources[@]} -eq 0 ] || problems_from < <(awk -v modules="${modules[*]}" '
  BEGIN { n = split(modules, names, " "); for (i = 1; i <= n; i++) rank[names[i]] = i }
  FNR == 1 {
    if (header != "" && !once) print header ":1: a header starts with #pragma once"
    split(FILENAME, part, "/")
    in_src = FILENAME ~ /^src\/megalith\//
    mine = in_src ? part[3] : part[2]
    takes_settings = in_src && rank[mine] > rank["config"] && rank[mine] < rank["run"]
    header = FILENAME ~ /\.(h|cuh)$/ ? FILENAME : ""
    once = 0
  }
  /^#pragma once/ { once = 1 }
  takes_settings && !/^[ \t]*\/\// && /config::[A-Za-z]*Config([^A-Za-z]|$)|TrainingArguments/ {
    print FILENAME ":" FNR ": " mine " names the options of a run; take a struct of your own, which run/resolve/ makes"
  }
  /^[ \t]*#[ \t]*include/ {
    where = FILENAME ":" FNR ": "
    target = $0
    sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", target)
    sub(/[>"].*/, "", target)
    if (in_src && target ~ /^\.\.?\//) print where "include by the path from src, not " target
    if (target ~ /^megalith\//) {
      split(target, to, "/")
      if (in_src && !(to[2] in rank)) print where to[2] " is no module"
      else if (in_src && rank[to[2]] > rank[mine]) print where mine " includes " target ", a module above it"
      if (takes_settings && to[2] == "config" && target != "megalith/config/enums.h")
        print where mine " includes " target "; below run only megalith/config/enums.h may be"
      if (target ~ /_internal\.h$/) {
        own = mine
        if (own == "cuda_emulation") own = "ops"  # tests of its kernels
        if (to[2] != own) print where target " is for its own module only"
      }
    }
    if (FILENAME ~ /\.cuh?$/ && target ~ /^(ATen|torch)\//) print where "no ATen or torch header in CUDA sources: " target
    if (header != "" && target == "torch/torch.h") print where "no <torch/torch.h> in a header"
  }
  END { if (header != "" && !once) print header ":1: a header starts with #pragma once" }
' "${sources[@]}")

if [ -e fuzz/CMakeLists.txt ]; then
  while read -r source; do
    [ -e "src/megalith/$source" ] || problem fuzz/CMakeLists.txt "src/megalith/$source does not exist"
  done < <(grep -oE '[a-z0-9_]+/[a-z0-9_/]+\.cc' fuzz/CMakeLists.txt)
fi

# Folders of a module that include each other, directly or not: tsort names them.
folders=$(mktemp)
trap 'rm -f "$folders"' EXIT
[ ${#sources[@]} -eq 0 ] || awk '
  FILENAME ~ /^src\/megalith\// && /^#include "megalith\// {
    own = FILENAME; sub(/^src\//, "", own); sub(/\/[^\/]*$/, "", own)
    other = $2; gsub(/"/, "", other); sub(/\/[^\/]*$/, "", other)
    split(own, a, "/"); split(other, b, "/")
    if (a[2] == b[2] && own != other) print own, other
  }' "${sources[@]}" | sort -u >"$folders"
circle=$({ tsort <"$folders" 2>&1 >/dev/null || true; } | sed -n 's/^tsort: \(megalith.*\)/\1/p' | sort -u | tr '\n' ' ')
[ -z "$circle" ] || problem "src/${circle%% *}" "these folders include each other in a circle: $circle"
finish
