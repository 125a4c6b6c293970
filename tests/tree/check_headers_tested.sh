#!/usr/bin/env bash
# Every public header is included by a test, so that a reader of the header finds its use there: what is exercised only through
# another header is included nevertheless. tests/tree/allowed_headers.txt has the rest, each with its reason; a line whose
# header has got a test, or is gone, has to go as well, so the list only becomes shorter.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

allowed=tests/tree/allowed_headers.txt
headers=$(tree_files src | grep -E '^src/megalith/.*\.h$' | grep -vE '_internal\.h$' | sed 's,^src/,,')
included=$(tree_files tests | grep -E '\.(h|cc|cu|cuh)$' | tr '\n' '\0' |
  xargs -0r sed -nE 's,^ *#include ["<](megalith/[^">]*)[">].*,\1,p' | sort -u)
known=
while read -r header reason; do
  case $header in '' | '#'*) continue ;; esac
  known+=$header$'\n'
  [ -n "$reason" ] || problem "$allowed" "$header has no reason"
  grep -qxF -e "$header" <<<"$headers" || problem "$allowed" "there is no $header; remove the line"
  if grep -qxF -e "$header" <<<"$included"; then problem "$allowed" "a test includes $header; remove the line"; fi
done < <(cat "$allowed" 2>/dev/null || true)
problems_from < <(comm -23 <(sort -u <<<"$headers") <(printf '%s\n%s' "$included" "$known" | sort -u) | sed '/^$/d' |
  sed 's|.*|src/&: no test includes it; test it, or give the reason in tests/tree/allowed_headers.txt|')
finish
