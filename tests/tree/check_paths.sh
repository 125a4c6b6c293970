#!/usr/bin/env bash
# Nothing that names one person's machine or workplace: folders that exist nowhere else, package indexes, private hosts.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Each has a character class somewhere, so that this file does not match itself.
patterns=(
  '(^|[^A-Za-z0-9_.-])/wor[k]/'                    # a folder of the machine this was written on
  '(^|[^A-Za-z0-9_.-])/tmp/[w](/|[^A-Za-z0-9_.-]|$)'
  '(^|[^A-Za-z0-9_.-])/roo[t]/'
  '(^|[^A-Za-z0-9_.-])/hom[e]/[a-z]'
  'index-ur[l][ =]*http'                           # pip is configured by its user
  'INDEX_UR[L]=http'
  'https?:/[/]([^/ ]*@)?(10|172|192)\.[0-9]'       # private addresses and names
  'https?:/[/][^/ ]*\.(internal|intranet|corp|lan|local)([:/]|$)'
  'https?:/[/][^/ ]*(artifactory|nexus|jfrog)'
)
mapfile -t files < <(tree_files)
for pattern in "${patterns[@]}"; do
  problems_from < <(printf '%s\0' "${files[@]}" | xargs -0 grep -InE -e "$pattern" -- 2>/dev/null | cut -c 1-200)
done
finish
