#!/usr/bin/env bash
# How long the dashboard takes to show large runs, and the memory of its server and of the browser: one run of a million lines,
# then 64 runs of 20,000. Needs Chromium (scripts/install_chromium.sh) and curl.
#   bench/dashboard_bench.sh build/release/bin/megalith [REPEATS]
# Shown is the time from opening the address until everything is drawn (the page sets its title last), the resident memory of the
# server and of the browser's process for the page at that moment, and the time of a request for 1,000 steps out of the middle,
# as a zoom makes it. The page cache is warm: the files have just been written.
set -euo pipefail

program=$(realpath "${1:?the program megalith}")
repeats=${2:-3}
browser=${MEGALITH_CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}
work=$(mktemp -d)
server=
page=
finish() {
  for pid in $page $server; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# LINES FOLDER SEED: metrics.jsonl as a run writes it, fourteen numbers each.
write_run() {
  mkdir -p "$2"
  awk -v lines="$1" -v seed="$3" 'BEGIN {
    srand(seed)
    for (i = 1; i <= lines; ++i)
      printf "{\"step\":%d,\"epoch\":%.6f,\"loss\":%.12f,\"grad_norm\":%.12f,\"learning_rate\":%.12e,\"tokens_per_second\":%.6f,\"token_per_sec_per_gpu\":%.6f,\"tflops_per_device\":%.9f,\"memory\":%d,\"skipped_iter\":0,\"nan_iter\":0,\"time\":%.3f,\"samples\":%d,\"tokens\":%d}\n",
        i, i / lines, 2 + 8 / sqrt(i) + 0.3 * rand(), 0.5 + rand(), 0.0003 * (1 - i / (lines + 1)), 1e6 + 1e5 * rand(), 1e5 + 1e4 * rand(), 400 + 20 * rand(), 8e10, 1.7e9 + i * 0.5, 64 * i, 262144 * i
  }' > "$2/metrics.jsonl"
}

now() { date +%s.%N; }
resident_mib() { awk '/^VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$1/status" 2>/dev/null || echo 0; }

# The process of the page: the largest of the renderers below the browser.
renderer_mib() {
  local largest=0 size pid
  for pid in $(pgrep -f -- "--type=renderer.*$work/profile" || true) $(pgrep -P "$page" || true); do
    grep -qz -- '--type=renderer' "/proc/$pid/cmdline" 2>/dev/null || continue
    size=$(resident_mib "$pid")
    if [ "$size" -gt "$largest" ]; then largest=$size; fi
  done
  echo "$largest"
}

# FOLDER STEPS: one start of the server and of the browser.
measure() {
  "$program" dashboard "$1" > "$work/address" 2>/dev/null &
  server=$!
  until [ -s "$work/address" ]; do sleep 0.05; done
  local address port begun shown zoomed
  address=$(cat "$work/address")
  rm -rf "$work/profile"
  : > "$work/browser.log"
  "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --window-size=1440,1000 \
    --user-data-dir="$work/profile" --remote-debugging-port=0 about:blank 2> "$work/browser.log" &
  page=$!
  until port=$(sed -n 's,^DevTools listening on ws://[^:]*:\([0-9]*\)/.*,\1,p' "$work/browser.log") && [ -n "$port" ]; do sleep 0.05; done
  begun=$(now)
  curl -sS -X PUT "http://127.0.0.1:$port/json/new?$address" > /dev/null
  until curl -sS "http://127.0.0.1:$port/json/list" | grep -q '"title": ".* · Megalith"'; do sleep 0.05; done
  shown=$(now)
  local server_mib page_mib
  server_mib=$(resident_mib "$server")
  page_mib=$(renderer_mib)
  zoomed=$(curl -sS -o /dev/null -w '%{time_total}' "${address}api/runs/0/steps/$2")
  awk -v a="$begun" -v b="$shown" -v s="$server_mib" -v p="$page_mib" -v z="$zoomed" \
    'BEGIN { printf "shown after %.1f s; server %d MiB, page %d MiB; 1,000 steps of one run in %.0f ms\n", b - a, s, p, 1000 * z }'
  kill "$page" "$server"
  wait "$page" "$server" 2>/dev/null || true
  page=
  server=
  rm -f "$work/address"
}

echo "$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1 /proc/loadavg)"
write_run 1000000 "$work/one/run" 1
echo "a run of 1,000,000 lines: $(du -sBMB "$work/one" | cut -f1)"
for _ in $(seq "$repeats"); do measure "$work/one/run" 500000-500999; done
rm -rf "$work/one"
for run in $(seq 64); do write_run 20000 "$work/many/run-$run" "$run"; done
echo "64 runs of 20,000 lines: $(du -sBMB "$work/many" | cut -f1)"
for _ in $(seq "$repeats"); do measure "$work/many" 10000-10999; done
