#!/usr/bin/env bash
# fuzz.sh BUILD_DIR [fuzzers…]: runs each fuzzer for FUZZ_SECONDS (default 60) and fails on the first finding.
#
# Every run starts from the seeds in fuzz/corpus and from what earlier runs found in BUILD_DIR/corpus. An input that brings
# a fault about is left in BUILD_DIR/findings; run the fuzzer on that file to see it again, and add it to fuzz/corpus, which
# the tests run over, once it is mended.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$(cd "$1" && pwd)
shift
seconds=${FUZZ_SECONDS:-60}
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(ls "$root/fuzz/corpus")

mkdir -p "$build_dir/findings"
for name in "${names[@]}"; do
  program=$build_dir/bin/fuzz_$name
  [ -x "$program" ] || { echo "fuzz: $program is not built" >&2; exit 2; }
  found=$build_dir/corpus/$name
  mkdir -p "$found"
  echo "fuzz_$name: $seconds s"
  rc=0
  "$program" -max_total_time="$seconds" -verbosity=0 -timeout=10 -rss_limit_mb=2048 -dict="$root/fuzz/json.dict" -print_final_stats=1 \
    -artifact_prefix="$build_dir/findings/$name-" "$found" "$root/fuzz/corpus/$name" >"$build_dir/$name.log" 2>&1 || rc=$?
  if [ $rc -ne 0 ]; then
    tail -n 60 "$build_dir/$name.log" >&2
    # libFuzzer's own code for a signal from outside.
    [ $rc -ne 72 ] || { echo "fuzz_$name: interrupted" >&2; exit 1; }
    echo "fuzz_$name: a finding; its input is in ${build_dir#"$root"/}/findings" >&2
    exit 1
  fi
  sed -n 's/^stat::number_of_executed_units: */  inputs tried: /p' "$build_dir/$name.log"
done
