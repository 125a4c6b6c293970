#!/usr/bin/env bash
# check_words.sh ROOT [--update]: the words of comments, messages and pages.
# - Ten habits of bad English (tests/tree/words.py lists them) occur no more often than tests/tree/words_ceiling.txt allows. The
#   ceilings only go down: --update lowers them to what is there now. tests/tree/allowed_words.txt has the places where one is right.
# - Files and identifiers that comments and pages name exist.
# - Comments end at column 120, and no table, list or ruler in them is cut. Pages wrap at column 110, but for tables, code, and a
#   line that is one link or one span of code.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
mode=check
[ "${2:-}" != --update ] || mode=update
tree_files | PYTHONDONTWRITEBYTECODE=1 python3 "$here/words.py" $mode
