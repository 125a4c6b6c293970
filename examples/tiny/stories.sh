#!/usr/bin/env bash
# stories.sh [N]: N (400) little stories for models that train in seconds, a document a line: {"text": "…"}. The same every time.
set -euo pipefail
awk -v n="${1:-400}" '
  # Park and Miller: exact in the doubles of every awk.
  function pick(list,   words, count) {
    count = split(list, words, "|")
    seed = seed * 16807 % 2147483647
    return words[int(seed / 4096) % count + 1]
  }
  BEGIN {
    seed = 2024
    for (i = 0; i < n; i++) {
      name = pick("Anna|Ben|Clara|David|Ella|Finn|Greta|Hugo")
      friend = pick("Ida|Jonas|Klara|Leo|Mia|Nils")
      animal = pick("fox|bear|cat|mouse|owl|rabbit|frog|duck")
      place = pick("forest|garden|village|house by the sea|valley|castle")
      thing = pick("red ball|golden key|small boat|blue stone|silver bell|big cake")
      play = pick("played|sang|danced|laughed|swam|ran")
      printf "{\"text\": \"Once upon a time there was a %s %s named %s. %s lived in a %s and liked to %s. ",
        pick("little|kind|clever|brave|funny"), animal, name, name, place, pick("sing|read|swim|climb|sleep")
      printf "One day %s found a %s near the %s. \\\"Look, %s, a %s!\\\" said %s. ",
        name, thing, pick("river|old tree|bridge|well|road"), friend, thing, name
      printf "%s and %s %s together until the sun went down. Then %s went home and was very %s.\"}\n",
        name, friend, play, name, pick("happy|tired|proud|glad")
    }
  }'
