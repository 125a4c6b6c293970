#!/usr/bin/env bash
# bad_examples.sh CHECK: a check that cannot fail is none. Builds a small tree that the check accepts, then breaks one rule
# at a time and expects the check to fail and to name the file.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
check=$here/check_$1.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

good_tree() {
  rm -rf "$tree"
  mkdir -p "$tree"/{src/megalith/base,src/megalith/comm/wing,tests/comm,bench,docs}
  cp "$here/../../.clang-format" "$tree/"
  printf 'add_subdirectory(base)\nadd_subdirectory(comm)\n' >"$tree/src/megalith/CMakeLists.txt"
  printf '#pragma once\n\nint one();\n' >"$tree/src/megalith/base/one.h"
  printf '#include "megalith/base/one.h"\n\nint one() { return 1; }\n' >"$tree/src/megalith/base/one.cc"
  printf '#pragma once\n' >"$tree/src/megalith/comm/two_internal.h"
  printf '#include "megalith/base/one.h"\n#include "megalith/comm/two_internal.h"\n' >"$tree/src/megalith/comm/two.cc"
  printf '// No TrainingArguments.\n#include "megalith/comm/two_internal.h"\n#include "megalith/config/enums.h"\n' >"$tree/src/megalith/comm/wing/three.cc"
  printf '#include "megalith/base/one.h"\n#include "megalith/comm/two_internal.h"\n' >"$tree/tests/comm/two_test.cc"
  printf '# A tree\n\n## Read me\n\n[one](src/megalith/base/one.h), [docs](docs/a.md#the-second-part), `[no](link)`\n' >"$tree/README.md"
  printf '# First\n\n## The second part\n\n[up](../README.md) [web](https://example.org/x) [here](#first)\n' >"$tree/docs/a.md"
}

# bad FILE CONTENT [NAMED]: with this file the check fails and its output names the file, or what NAMED says.
bad() {
  good_tree
  mkdir -p "$(dirname "$tree/$1")"
  printf "$2" >"$tree/$1"
  local output
  if output=$("$check" "$tree" 2>&1); then
    echo "not noticed: $1 with: $2"
    failures=$((failures + 1))
  elif ! grep -qF -e "${3:-$1}" <<<"$output"; then
    echo "${3:-$1} is not named in: $output"
    failures=$((failures + 1))
  fi
}

lines() { for ((i = 0; i < $1; i++)); do printf '%s\\n' "$2"; done; }

good_tree
rc=0
"$check" "$tree" || rc=$?
[ $rc -ne 77 ] || exit 77
[ $rc -eq 0 ] || { echo "the good tree is refused"; exit 1; }

case $1 in
  errors)
    bad docs/errors.md '| message | why | what to do |\n|---|---|---|\n| `no such …` | a | b |\n'
    bad docs/errors.md '| `int one(); … two` | a | b |\n'
    bad docs/errors.md '| `int one.);` | a | b |\n'
    ;;
  modules)
    bad src/megalith/base/up.cc '#include "megalith/comm/two.h"\n'
    bad src/megalith/base/up.cc '#include <megalith/comm/two.h>\n'
    bad src/megalith/base/up.cc '#include "../comm/two.h"\n'
    bad src/megalith/base/up.cc '#include "megalith/nowhere/two.h"\n'
    bad src/megalith/nowhere/one.h '#pragma once\n' src/megalith/nowhere
    bad src/megalith/CMakeLists.txt 'add_subdirectory(comm)\nadd_subdirectory(base)\n'
    bad src/megalith/comm/moe/deep.cc '#include "megalith/base/one_internal.h"\n'
    bad src/megalith/comm/two.cc '#include "megalith/comm/wing/three.h"\n' 'megalith/comm megalith/comm/wing'
    bad fuzz/CMakeLists.txt 'megalith_add_fuzzer(one SOURCES base/one.cc base/gone.cc)\n' base/gone.cc
    bad tests/base/peek_test.cc '#include "megalith/comm/two_internal.h"\n'
    bad src/megalith/comm/options.cc '#include "megalith/config/run_config.h"\n'
    bad src/megalith/comm/options.cc 'void connect(const config::CommConfig& comm);\n'
    bad src/megalith/comm/options.cc 'namespace megalith::config {\nstruct TrainingArguments;\n}\n'
    bad src/megalith/comm/kernel.cu '#include <ATen/ATen.h>\n'
    bad src/megalith/comm/slow.h '#pragma once\n#include <torch/torch.h>\n'
    bad src/megalith/comm/twice.h 'int two();\n' ;;
  sizes)
    bad src/megalith/base/long.cc "$(lines 801 'int x;')"
    bad src/megalith/base/long.cc "namespace a {\\n\\nint f(int a,\\n      int b) {\\n$(lines 119 '  a += b;')}\\n\\n}  // namespace a\\n"
    bad src/megalith/base/long.h "#pragma once\\nclass A {\\n public:\\n  int f() {\\n$(lines 121 '    f();')  }\\n};\\n"
    good_tree
    touch "$tree"/src/megalith/comm/wing/{1..40}.h
    if "$check" "$tree" >/dev/null; then echo "not noticed: 41 files in a folder"; failures=$((failures + 1)); fi
    # Long, but no function: a table, a class of short functions, many short functions.
    good_tree
    printf "int t[] = {\\n$(lines 200 '    1,')};\\nclass A {\\n$(lines 50 '  int f() {\n    return 1;\n  }')};\\n$(lines 50 'int f() {\n  return 1;\n}')" \
      >"$tree/src/megalith/base/fine.cc"
    "$check" "$tree" || { echo "refused without cause"; failures=$((failures + 1)); } ;;
  globals)
    for state in 'int calls;' 'static int calls = 0;' 'std::map<int, std::string> names;' 'std::atomic<bool> stop{false};' \
      'thread_local int rank = 0;' 'const char* label = "x";' 'inline std::mutex lock;' \
      'int next() {\n  static int last = 0;\n  return ++last;\n}' 'int f() {\n  static Cache cache("x", 3);\n}' \
      'int f() {\n  static const std::shared_ptr<Log> log = make();\n}' 'int f() {\n  static const auto log = [] {\n  }();\n}' \
      'class A {\n  static inline int made = 0;\n};'; do
      bad src/megalith/base/g.cc "namespace a {\\n$state\\n}\\n"
    done
    bad src/megalith/base/log.cc 'int f();\n'
    # None of these can change, or is a variable.
    good_tree
    cat >"$tree/src/megalith/base/fine.cc" <<'END'
using Names = std::vector<std::string>;
extern "C" int other;
struct One;
constexpr int kOne = 1;
inline constexpr std::array<int, 2> kTwo{1, 2};
const std::string kText = "static int x;";
const char* const kLabel = "x";
const char* kHelp() { return R"(
int x = 3;
)"; }
static int one(int a);
int two() {
  static const std::map<std::string, int> names{{"a", 1}};
  static constexpr int kLocal = 3;
  static const std::unique_ptr<const Names> all = make();
  int changes = 0;
  return changes;
}
class A {
  static A from(const Names& names);
  static std::unique_ptr<A> make() { return nullptr; }
  static_assert(kOne == 1);
};
END
    "$check" "$tree" || { echo "refused without cause"; failures=$((failures + 1)); } ;;
  paths)
    bad docs/b.md "see /wor""k/main/x\\n"
    bad docs/b.md "wheels in /tmp/""w\\n"
    bad src/megalith/base/p.cc "const char* p = \"/hom""e/me/x\";\\n"
    bad scripts/x.sh "pip install --index-ur""l=https://pypi.example.org/simple x\\n"
    bad scripts/x.sh "fetch https:/""/wheels.example.inter""nal/simple\\n"
    bad scripts/x.sh "fetch https:/""/10.1.2.3:8080/simple\\n" ;;
  links)
    bad README.md '[gone](docs/gone.md)\n'
    bad docs/b.md 'see [this](a.md#the-third-part)\n'
    bad docs/b.md '[two](a.md), [links](nowhere.md)\n' ;;
  words)
    for words in 'Of the rank.' 'What a rank sends.' 'Comes behind the update.' 'One thread a rank.' 'It is no number.' \
      'The limit; empty: none.' 'For whoever reads it.' 'Starts anew.' 'Nobody goes on before that.' 'The look for NaN.'; do
      bad src/megalith/base/w.h "#pragma once\\n\\n// $words\\nint w();\\n"
    done
    bad src/megalith/base/w.cc 'const char* text = "the size {} is no multiple "\n    "of {}";\n'
    bad docs/b.md '# B\n\nThe text stands inside of a block.\n'
    bad tests/comm/w_test.cc '// Starts anew.\n'
    bad scripts/w.sh '# One file a rank.\n'
    bad cmake/w.cmake '# Comes behind the update.\n'
    bad src/megalith/base/w.cc '// See spec/gone.md.\n'
    bad src/megalith/base/w.cc '// Calls one() and two_of_it().\n' two_of_it
    bad docs/b.md '# B\n\n`base/two.h` has more.\n' base/two.h
    bad docs/b.md '# B\n\nMade by `NoSuchClass`.\n' NoSuchClass
    bad src/megalith/base/w.cc "// $(printf 'words%.0s' {1..30})\\n" 'column 153'
    bad src/megalith/base/w.cc '// -------------------------------------------------- all of the\n// loading\n\nint w();\n' 'a ruler'
    bad src/megalith/base/w.cc "//\\n//   name      $(printf 'x%.0s' {1..104})\\n//   cut off\\n//   other     second row\\n" 'a table'
    bad docs/b.md "# B\\n\\n$(printf 'words %.0s' {1..19})\\n" '114 columns'
    # A ceiling that allows fewer places than there are, and an allowed place.
    good_tree
    mkdir -p "$tree/tests/tree"
    printf '// Starts anew. Never does anything else, and in particular not anew.\n' >"$tree/src/megalith/base/w.cc"
    printf 'archaic 1\n' >"$tree/tests/tree/words_ceiling.txt"
    if "$check" "$tree" >/dev/null; then echo "not noticed: two places, one allowed"; failures=$((failures + 1)); fi
    printf 'archaic src/*/w.cc Starts anew\n' >"$tree/tests/tree/allowed_words.txt"
    "$check" "$tree" || { echo "refused without cause"; failures=$((failures + 1)); }
    # --update lowers a ceiling, and never raises it.
    printf '// Plain words.\n' >"$tree/src/megalith/base/w.cc"
    "$check" "$tree" --update >/dev/null
    printf '// Never anew.\n' >"$tree/src/megalith/base/w.cc"
    if "$check" "$tree" --update >/dev/null; then echo "--update has raised a ceiling"; failures=$((failures + 1)); fi
    # Good English that looks similar, names that exist, data, and code in backquotes.
    good_tree
    cat >"$tree/src/megalith/base/fine.cc" <<'END'
// Returns one(), or 0 when there is no number; no longer throws. Files left behind are removed. See base/one.h.
//
//   name   a row that is as long as a row may be, so that another word, which is one more, would not fit in here at all
//   other  a second row
int fine() {
  const char* key = "is_no";  // `is no` as data
  return one();
}
END
    "$check" "$tree" || { echo "refused without cause"; failures=$((failures + 1)); } ;;
  headers_tested)
    bad src/megalith/base/new.h '#pragma once\n'
    bad src/megalith/comm/wing/new.h '#pragma once\n'
    bad tests/comm/two_test.cc '#include "megalith/comm/two_internal.h"\n' src/megalith/base/one.h
    bad tests/tree/allowed_headers.txt 'megalith/base/one.h tested elsewhere\n' 'a test includes megalith/base/one.h'
    bad tests/tree/allowed_headers.txt 'megalith/base/gone.h tested elsewhere\n' 'there is no megalith/base/gone.h'
    good_tree
    mkdir "$tree/tests/tree"
    printf '#pragma once\n' >"$tree/src/megalith/base/new.h"
    printf 'megalith/base/new.h\n' >"$tree/tests/tree/allowed_headers.txt"
    if "$check" "$tree" >/dev/null; then echo "not noticed: no reason"; failures=$((failures + 1)); fi
    printf '# One line.\nmegalith/base/new.h by the tests of comm\n' >"$tree/tests/tree/allowed_headers.txt"
    "$check" "$tree" || { echo "refused without cause"; failures=$((failures + 1)); } ;;
  format)
    bad src/megalith/base/f.cc 'int  f( ){return 1;}\n'
    bad tests/comm/f_test.cc 'int *p;\n' ;;
  *) echo "no bad examples for $1"; exit 1 ;;
esac
[ $failures -eq 0 ]
