#!/usr/bin/env bash
# Links between Markdown files lead somewhere: the file exists, and so does the heading after a #.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The anchors that GitHub makes of a file's headings, one a line.
anchors() {
  awk '/^```/ { fenced = !fenced } !fenced && /^#+ / {
    sub(/^#+ +/, ""); text = tolower($0); gsub(/[^a-z0-9 _-]/, "", text); gsub(/ /, "-", text); print text }' "$1"
}

# "line target" for every relative link outside code.
links() {
  awk '/^[ \t]*```/ { fenced = !fenced } !fenced {
    gsub(/`[^`]*`/, "")
    while (match($0, /\]\([^) ]+/)) {
      target = substr($0, RSTART + 2, RLENGTH - 2)
      $0 = substr($0, RSTART + RLENGTH)
      if (target !~ /^[a-z]+:/) print FNR, target
    } }' "$1"
}

while IFS= read -r file; do
  while read -r line target; do
    path=${target%%#*}
    full=$file
    [ -z "$path" ] || full=$(dirname "$file")/$path
    if [ ! -e "$full" ]; then problem "$file:$line" "$target does not exist"; continue; fi
    case $target in
      *'#'*) anchors "$full" | grep -xF -e "${target#*#}" >/dev/null || problem "$file:$line" "$target: no such heading" ;;
    esac
  done < <(links "$file")
done < <(tree_files | grep '\.md$')
finish
