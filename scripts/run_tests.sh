#!/usr/bin/env bash
# run_tests.sh BUILD_DIR [ctest arguments…]: runs CTest, then names every skipped test with its reason.
#
# A skip has to be on the short list tests/allowed_skips.txt (or the file in MEGALITH_ALLOWED_SKIPS), otherwise the run
# fails: a test that silently stops testing is worse than none. CTest's own summary is held back and comes last.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
allowed_skips=${MEGALITH_ALLOWED_SKIPS:-$root/tests/allowed_skips.txt}
build_dir=$1
shift
[ -e "$build_dir/CTestTestfile.cmake" ] || { echo "run_tests: $build_dir has no tests; build it first" >&2; exit 2; }
log=$build_dir/Testing/Temporary/LastTest.log

# Why a test was skipped, from CTest's log: what GTEST_SKIP() << "…" printed, or a line `SKIP: …` of a script.
skip_reason() {
  awk -v wanted="$1" '
    /^[0-9]+\/[0-9]+ Test: / { current = substr($0, index($0, "Test: ") + 6); reading = 0; next }
    current != wanted { next }
    /^SKIP: / { print substr($0, 7); exit }
    / Skipped$/ || /: Skipped: / { reading = 1; next }
    reading && NF { print; exit }' "$log"
}

# There are as many tests at once as cores: OpenMP threads that spin while they wait take a core from another test.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# The patterns (extended regular expressions for the whole name) come before the first blank; the rest says why.
skip_allowed() {
  local pattern reason
  while read -r pattern reason; do
    case $pattern in ''|'#'*) continue ;; esac
    [[ $1 =~ ^($pattern)$ ]] && return 0
  done <"$allowed_skips"
  return 1
}

skipped=()
summary=()   # "…% tests passed, …" and "Total Test time (real) = …"
lists=()     # "The following tests did not run / FAILED: …"
in_summary=no
rc_file=$(mktemp)
trap 'rm -f "$rc_file"' EXIT

while IFS= read -r line; do
  case $line in
    *'tests passed,'*' failed out of '*) in_summary=yes; summary+=("$line"); continue ;;
    'Total Test time (real)'*) summary+=("$line"); continue ;;
  esac
  if [ $in_summary = yes ]; then
    [ -z "$line" ] || lists+=("$line")
    if [[ $line =~ ^[[:space:]]*[0-9]+\ -\ (.*)\ \((Skipped|Disabled)\) ]]; then skipped+=("${BASH_REMATCH[1]}"); fi
  else
    printf '%s\n' "$line"
  fi
done < <(rc=0; ctest --test-dir "$build_dir" --output-on-failure --no-label-summary --no-tests=error \
           --parallel "$(env -u OMP_NUM_THREADS nproc)" "$@" 2>&1 || rc=$?; echo $rc >"$rc_file")
wait $! 2>/dev/null || true
rc=$(cat "$rc_file")

[ ${#lists[@]} -eq 0 ] || printf '%s\n' "${lists[@]}"
unexpected=0
if [ ${#skipped[@]} -gt 0 ]; then
  echo
  echo "Skipped tests (${#skipped[@]}):"
  for name in "${skipped[@]}"; do
    reason=$(skip_reason "$name")
    verdict=allowed
    if ! skip_allowed "$name"; then verdict="NOT ALLOWED"; unexpected=$((unexpected + 1)); fi
    echo "  $name: ${reason:-no reason given} [$verdict]"
  done
fi
if [ $unexpected -gt 0 ]; then
  echo "error: $unexpected skipped tests are not listed in ${allowed_skips#"$root"/}"
  [ "$rc" -ne 0 ] || rc=1
fi
echo
[ ${#summary[@]} -eq 0 ] || printf '%s\n' "${summary[@]}"
exit "$rc"
