# Shared by the repository checks. Each check is `check_NAME.sh ROOT`; it prints file:line: what is wrong, and fails.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$1" && pwd)
cd "$root"
problems=0

# problem PLACE MESSAGE
problem() {
  echo "$1: $2"
  problems=$((problems + 1))
}
# Every line of the input is a problem.
problems_from() {
  local line
  while IFS= read -r line; do
    echo "$line"
    problems=$((problems + 1))
  done
}
finish() {
  [ $problems -eq 0 ] || { echo "$problems problems"; exit 1; }
  exit 0
}

# Every file that is, or is about to be, under version control, relative to the root. Works without git, too.
tree_files() {
  if ! { [ -e .git ] && git ls-files -co --exclude-standard -- "$@" 2>/dev/null; }; then
    find "${@:-.}" \( -path ./build -o -path ./.deps -o -path ./dist -o -path ./.git \) -prune -o -type f -print 2>/dev/null |
      sed 's,^\./,,'
  fi | sort | while IFS= read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
}
