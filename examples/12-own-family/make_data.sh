#!/usr/bin/env bash
# Samples for the example: rows of ids that count up from a number in steps of one to three. {"input_ids": […]} a line.
set -euo pipefail
awk 'BEGIN {
  for (i = 0; i < 400; i++) {
    printf "{\"input_ids\": ["
    for (j = 0; j < 24; j++) printf "%s%d", j ? ", " : "", (i * 7 + j * (i % 3 + 1)) % 40
    print "]}"
  }
}'
