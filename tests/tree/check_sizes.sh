#!/usr/bin/env bash
# No file outgrows its readers: a source of more than 800 lines or a function of more than 120 fails; sources of more than
# 400 lines are named. A folder has at most 40 files, so that a glance takes it in. Functions are found by their layout, which
# clang-format fixes: a definition starts at column 0 (in a class at column 2) and ends with a lone brace there.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mapfile -t sources < <(tree_files src | grep -E '\.(h|cc|cu|cuh)$')
[ ${#sources[@]} -eq 0 ] || problems_from < <(awk '
  function close_block(depth) {
    if (start[depth] && FNR - start[depth] + 1 > 120)
      print FILENAME ":" start[depth] ": a function of " FNR - start[depth] + 1 " lines; 120 is the limit"
    start[depth] = 0
  }
  FNR == 1 { start[0] = start[2] = 0 }
  FNR == 801 { print FILENAME ":801: more than 800 lines; split the file" }
  /^(namespace|class|struct|union|enum|extern)/ { start[0] = 0; next }
  /^  (class|struct|union|enum) / { start[2] = 0; next }
  /^}$/ { close_block(0) }
  /^  }$/ { close_block(2) }
  /^}/ { start[0] = 0 }
  /^  }/ { start[2] = 0 }
  /^[^ }#\/]/ { start[0] = FNR }
  /^  [^ }#\/]/ { start[2] = FNR }
' "${sources[@]}")
for file in "${sources[@]}"; do
  lines=$(wc -l <"$file")
  [ "$lines" -le 400 ] || echo "note: $file has $lines lines"
done
while read -r count folder; do
  [ "$count" -le 40 ] || problem "$folder" "$count files; 40 is the limit, so give the folder wings"
done < <(tree_files src | sed 's,/[^/]*$,,' | sort | uniq -c)
finish
