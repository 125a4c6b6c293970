#!/usr/bin/env bash
# Every message in docs/errors.md is in the sources: the first cell of each row of three, where … stands for anything.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

page=docs/errors.md
[ -e "$page" ] || finish

# String literals as the compiler joins them, a file a line.
texts=$(mktemp)
trap 'rm -f "$texts"' EXIT
while IFS= read -r file; do
  tr '\n' ' ' <"$file" | sed 's/" *"//g'
  echo
done < <(tree_files src | grep -E '\.(h|cc)$') >"$texts"

while IFS=: read -r line text; do
  message=$(sed -n 's/^| `\(.*\)` | .* | .* |$/\1/p' <<<"$text")
  [ -n "$message" ] || continue
  pattern=$(sed -e 's/[][\.*^$|(){}+?]/\\&/g' -e 's/"/\\\\?"/g' -e 's/…/[^"]*/g' <<<"$message")
  grep -qE -e "$pattern" "$texts" || problem "$page:$line" "no source says: $message"
done < <(grep -n '^| `' "$page")
finish
