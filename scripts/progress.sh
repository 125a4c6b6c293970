#!/usr/bin/env bash
# progress.sh UNITS CORES: reads ninja's output and says how far the build is: "build: compiling 23 of 55, about 6 minutes left".
#
# On a terminal the line stays in place and counts down; elsewhere a new one comes every PROGRESS_INTERVAL seconds (30). Whatever
# else ninja prints, such as warnings, errors and the commands that failed, comes through as it is, below the step that it
# belongs to. A build with nothing to do prints nothing. scripts/build.sh pipes ninja through this with `pipefail`, which keeps
# ninja's exit code, and with NINJA_STATUS="$ninja_status".
#
# UNITS is the number of compile steps ahead, known from a dry run. Steps that archive, link or copy take no time worth counting.

ninja_status='@step %f/%t '  # marks the lines that ninja prints about a step; nothing that a compiler prints looks like it
unit_seconds=16              # CPU time of a typical compile step: what the estimate starts from

# time_left DONE UNITS ELAPSED CORES: seconds, at the moment when a unit is finished. As though four units per core had been
# compiled at the typical speed before the first: the measured speed takes over as more of them are finished, and the first one,
# which is the precompiled header and takes longer than others, does not count for too much.
time_left() { echo $((($2 - $1) * (4 * unit_seconds + $3) / (4 * $4 + $1))); }

# duration SECONDS: as people say it.
duration() {
  if [ "$1" -lt 45 ]; then
    echo "less than a minute"
  elif [ "$1" -lt 90 ]; then
    echo "about a minute"
  else
    echo "about $((($1 + 30) / 60)) minutes"
  fi
}

# elapsed SECONDS: 42 s, 9 min 42 s
elapsed() { if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# report: the line about how far the build is, in place or, when enough time has passed, as a line of its own.
report() {
  local text left
  if [ "$units" -eq 0 ] || [ "$failed" = yes ]; then return; fi
  if [ "$compiled" -lt "$units" ]; then
    left=$((ends - SECONDS))
    text="build: compiling $((compiled + 1)) of $units, $(duration $((left > 0 ? left : 0))) left"
  else
    text="build: compiled $units of $units, linking"
  fi
  if [ $terminal = yes ]; then
    printf '\r\033[K%s' "$text"
    in_place=yes
  elif [ $((SECONDS - reported)) -ge "$interval" ] && [ "$text" != "$last_text" ]; then
    printf '%s\n' "$text"
    reported=$SECONDS last_text=$text
  fi
}

# pass LINE: prints a line that is not about progress.
pass() {
  if [ $in_place = yes ]; then printf '\r\033[K'; in_place=no; fi
  printf '%s\n' "$1"
}

# take LINE: one line of ninja's output.
take() {
  if [[ $1 =~ ^@step\ [0-9]+/[0-9]+\ (.*)$ ]]; then
    step=${BASH_REMATCH[1]} step_shown=no
    if [[ $step =~ ^Building\ [A-Z]+\ object ]]; then
      compiled=$((compiled + 1))
      ends=$((SECONDS + $(time_left $compiled "$units" $SECONDS "$cores")))
      # The last one may have failed: the next line tells.
      if [ $compiled -ge "$units" ]; then return; fi
    fi
    report
    return
  fi
  case $1 in
    'ninja: no work to do.'|'ninja: Entering directory '*) return ;;
    # CMake was run again because its files changed: only what is missing is news.
    '-- Without '*) ;;
    '-- '*) if [[ $step == Re-running\ CMake* ]]; then return; fi ;;
    'FAILED: '*|'ninja: error: '*|'ninja: fatal: '*|'ninja: build stopped: '*) failed=yes ;;
  esac
  if [ -n "$step" ] && [ $step_shown = no ]; then
    step_shown=yes
    pass "$step"
  fi
  pass "$1"
}

follow() {
  local partial='' line code
  while true; do
    code=0
    IFS= read -r -t 1 line || code=$?
    if [ $code -gt 128 ]; then  # a second without a whole line
      partial+=$line
      report
      continue
    fi
    line=$partial$line partial=
    if [ $code -eq 0 ] || [ -n "$line" ]; then take "$line"; fi
    if [ $code -ne 0 ]; then break; fi
  done
  if [ $in_place = yes ]; then printf '\r\033[K'; fi
  if [ "$compiled" -gt 0 ] && [ $failed = no ]; then
    printf 'build: compiled %s unit%s in %s\n' "$compiled" "$([ "$compiled" -eq 1 ] || echo s)" "$(elapsed $SECONDS)"
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  units=$1 cores=$2 interval=${PROGRESS_INTERVAL:-30}
  terminal=no in_place=no
  if [ -t 1 ]; then terminal=yes; fi
  step='' step_shown=no compiled=0 failed=no reported=0 last_text=''
  ends=$(time_left 0 "$units" 0 "$cores")  # when the last unit should be finished, in seconds from the start
  trap '' INT  # ninja ends first, and says so
  follow
fi
