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

# Every skipped test with its reason, from CTest's log: what GTEST_SKIP() << "…" printed, under the test's own name when it ran
# with others of its suite, or a line `SKIP: …` of a script; then the name that CTest has for it.
skipped_with_reason() {
  awk '
    /^[0-9]+\/[0-9]+ Test: / { entry = substr($0, index($0, "Test: ") + 6); reading = 0; reason = ""; next }
    /^SKIP: / { print entry "\t" substr($0, 7) "\t" entry; next }
    / Skipped$/ || /: Skipped: / { reading = 1; next }
    /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ {
      name = substr($0, 14); sub(/ \([0-9]+ ms\)$/, "", name)
      print substr(entry, 1, index(entry, ".")) name "\t" reason "\t" entry
      reading = 0; reason = ""; next
    }
    reading && NF { reason = $0; reading = 0 }' "$log"
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

summary=()   # "…% tests passed, …" and "Total Test time (real) = …"
not_run=()   # by CTest's own account
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
    if [[ $line =~ ^[[:space:]]*[0-9]+\ -\ (.*)\ \((Skipped|Disabled)\) ]]; then not_run+=("${BASH_REMATCH[1]}"); fi
  else
    printf '%s\n' "$line"
  fi
done < <(rc=0; ctest --test-dir "$build_dir" --output-on-failure --no-label-summary --no-tests=error \
           --parallel "$(env -u OMP_NUM_THREADS nproc)" "$@" 2>&1 || rc=$?; echo $rc >"$rc_file")
wait $! 2>/dev/null || true
rc=$(cat "$rc_file")

[ ${#lists[@]} -eq 0 ] || printf '%s\n' "${lists[@]}"
mapfile -t skipped < <([ ! -e "$log" ] || skipped_with_reason)
for name in ${not_run[@]+"${not_run[@]}"}; do
  [[ $'\n'$(printf '%s\n' ${skipped[@]+"${skipped[@]}"})$'\n' == *$'\t'"$name"$'\n'* ]] || skipped+=("$name"$'\t\t'"$name")
done
unexpected=0
if [ ${#skipped[@]} -gt 0 ]; then
  echo
  echo "Skipped tests (${#skipped[@]}):"
  for each in "${skipped[@]}"; do
    IFS=$'\t' read -r name reason _ <<<"${each/$'\t\t'/$'\tno reason given\t'}"
    verdict=allowed
    if ! skip_allowed "$name"; then verdict="NOT ALLOWED"; unexpected=$((unexpected + 1)); fi
    echo "  $name: $reason [$verdict]"
  done
fi
if [ $unexpected -gt 0 ]; then
  echo "error: $unexpected skipped tests are not listed in ${allowed_skips#"$root"/}"
  [ "$rc" -ne 0 ] || rc=1
fi
echo
[ ${#summary[@]} -eq 0 ] || printf '%s\n' "${summary[@]}"
exit "$rc"
