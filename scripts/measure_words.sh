#!/usr/bin/env bash
# measure_words.sh [COMMIT…]: how much the code explains, and how well it is written: comment to code by kind of file, documented
# declarations, the habits that tests/tree/check_words.sh counts, broken tables, and lines of pages. Without a commit it measures the
# working tree; with several commits one after the other, all by the rules of this tree.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
words=$root/tests/tree/words.py
rules=tests/tree/allowed_words.txt
export PYTHONDONTWRITEBYTECODE=1

# measure FOLDER: of all files in it.
measure() { (cd "$1" && find . -type f | sed 's,^\./,,' | sort | python3 "$words" measure); }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for commit in "${@:-}"; do
  rm -rf "$work/tree"
  mkdir "$work/tree"
  if [ -n "$commit" ]; then
    echo "== $(git -C "$root" log -1 --format='%h %s' "$commit")"
    git -C "$root" archive "$commit" | tar -x -C "$work/tree"
  else
    echo "== working tree"
    (cd "$root" && git ls-files -coz --exclude-standard | while IFS= read -r -d '' file; do
      [ ! -f "$file" ] || printf '%s\0' "$file"
    done | tar -c --null -T -) | tar -x -C "$work/tree"
  fi
  mkdir -p "$work/tree/tests/tree"
  cp "$root/$rules" "$work/tree/$rules"
  measure "$work/tree"
  echo
done
