#!/usr/bin/env python3
"""words.py check|update|measure < FILES: the words of the tree, read by check_words.sh and scripts/measure_words.sh.

Runs in the root of the tree; the standard input lists its files. Comments, string literals and code of the C++ files are told
apart by one regular expression, so nothing has to be compiled.
  check    prints `file:line: what is wrong`, and exits with 1 if anything is.
  update   lowers the ceilings in tests/tree/words_ceiling.txt to what is counted now; it never raises one.
  measure  prints comment to code, the share of documented declarations, habits, broken tables, README and longest lines;
           with --bare also the declarations without a comment.
"""
import fnmatch
import re
import sys

CEILING = "tests/tree/words_ceiling.txt"
ALLOWED = "tests/tree/allowed_words.txt"
COLUMNS = 120
PAGE_COLUMNS = 110
LIST_BARE = "--bare" in sys.argv  # measure: name the declarations without a comment

UNITS = ("rank|row|step|token|parameter|element|layer|expert|head|line|file|block|warp|lane|thread|group|record|document|"
         "sample|sequence|micro-batch|microbatch|batch|bucket|column|value|word|character|byte|second|minute|node|machine|"
         "stage|chunk|device|GPU|epoch|run|test|message|tensor|process|number|weight|position|update|call|iteration|tile|side|"
         "task|case|page|part|entry|name|key|option|module|channel|round|pass|slot|set|core|model|dimension|item")
COUNTED = ("bytes|bits|tokens|lines|values|numbers|files|threads|blocks|elements|rows|floats|flops|FLOPs|samples|"
           "words|characters|steps|MB|GB|MiB|GiB|KiB|ms|µs|seconds|parameters|tiles|warps|"
           "multiplications|additions|products|experts|heads|layers|ranks|columns|entries|sequences")
NUMBER = r"(?<!rank )(?<![-.\w])\d+(?:[.,]\d+)*|one|two|three|four|five|six|seven|eight|nine|ten|sixteen|several"

# "1 ends a run", "one rank has a name": no quantity.
LINKS = (r"(?:for|has|have|had|does|is|as|in|of|to|at|or|and|with|from|by|on|that|than|if|times|into|ends|starts|keeps|uses|"
         r"turns|means|makes|gives|holds|takes|needs)\b")
# "the sequences a rank runs": no quantity, either.
CLAUSE = r"(?:each|has|have|is|of|runs|holds|sees|gets|needs|takes|can|must|may|does|reads|writes|keeps|owns|computes|got|sends|gives|at)\b"

# The ten habits: name, what to write instead, pattern, and where it is looked for: in the opening words of a comment, in
# comments, or in any prose (comments, messages, docs).
HABITS = [
    ("genitive", "give the sentence its noun or verb", r"^of (?!course\b)", "opening"),
    # A question is fine, and so is "Where experts are split, each rank …".
    ("opener", "name the thing, or begin with a verb",
     r"^(?:what|which|who|whose|where(?![^.;:]*, (?!and|or|in|which|who|to|by|as|at)\w))\b(?![^.]*\?)", "opening"),
    ("behind", "after, in time", r"(?<!left )(?<!lags )(?<!queue )(?<!queues )(?<!queued )(?<!hide )(?<!hides )(?<!step )\bbehind\b(?! the scenes)", "prose"),
    ("per", "per", rf"\b(?:(?:{NUMBER})(?: (?!{LINKS})[a-z-]+)?|{COUNTED}) an? (?:{UNITS})\b(?!-| {CLAUSE})", "prose"),
    ("is_no", "is not a", r"(?<!there )(?<!there has )(?<!there have )\b(?:is|are|was|were|be|been) "
                          r"(?:no (?!longer|more|less|later|fewer|worse|better|different|such|[a-z]+er than)|none\b)", "prose"),
    ("nothing_colon", "say what empty means", r"(?:^|[;.,(`] )(?:nothing|empty|none|unset|absent): ", "comment"),
    ("whoever", "name the caller or the reader", r"\bwhom?ever\b", "prose"),
    ("archaic", "again, inside, anyway, must", r"\b(?:anew|inside of|in spite of|shall|as it shall be)\b", "prose"),
    ("goes_on", "continues, has finished, is in flight",
     r"(?<!as training )\b(?:go(?:es|ing)?|went) on\b(?! (?:the|a|one|its|stdout|stderr) )|"
     r"\b(?:is|are|was|were) through\b(?! )|\bunder ?way\b", "prose"),
    ("makes_of_it", "the output of X, a check for, a request to",
     r"\b(?:makes?|making) of (?:it|them|him|its|a|the|what)\b|\b(?:the|a) looks? (?:for|of)\b|\ba wish to\b|"
     r"\bwhose [a-z ]{1,30} (?:is|are) (?:that|those) of\b", "prose"),
]
HABITS = [(name, advice, re.compile(pattern, re.IGNORECASE), where) for name, advice, pattern, where in HABITS]

CPP = re.compile(r"\.(?:h|cc|cu|cuh|js)$")
# Raw strings, strings, characters (but no separators of digits), and comments.
TOKEN = re.compile(r'R"([^(\s"]*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9a-fA-F_])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*(?:.|\n)*?\*/")


class Text:
    """A comment (lines of it joined) or a message, with the line it begins in."""

    def __init__(self, line, column, words, lines):
        self.line, self.column, self.words, self.lines = line, column, words, lines


class Source:
    """A C++ file: its comments, its messages, and its code with the comments blanked out."""

    def __init__(self, path, text):
        self.path = path
        self.raw = text.split("\n")
        self.comments, self.messages = [], []
        self.full = set()      # lines that are comments alone
        self.trailing = set()  # lines of code that end with a comment
        code, last, line = [], 0, 1
        last_string_end = None
        for match in TOKEN.finditer(text):
            begin, token = match.start(), match.group(0)
            between = text[last:begin]
            line += between.count("\n")
            newline = text.rfind("\n", 0, begin) + 1
            column = begin - newline
            code.append(between)
            if token.startswith("//") or token.startswith("/*"):
                self.comment(line, column, token, text[newline:begin].strip() == "")
                code.append("\n" * token.count("\n"))
            else:
                if token[0] != "'":
                    self.message(line, token, last_string_end is not None and text[last_string_end:begin].strip() == "")
                    last_string_end = match.end()
                code.append(token)
            line += token.count("\n")
            last = match.end()
        code.append(text[last:])
        self.code = "".join(code)

    def comment(self, line, column, token, alone):
        if token.startswith("/*"):
            if "\n" not in token and (not alone or token.endswith("=*/")):
                return  # /*name=*/
            words = [re.sub(r"^\s*\*? ?", "", each) for each in token[2:-2].split("\n")]
            self.full.update(range(line, line + len(words)))
            self.comments.append(Text(line, column, " ".join(words).strip(), words))
            return
        words = token[2:].rstrip()
        if words.strip().startswith(("NOLINT", "clang-format")) or re.match(r" (?:namespace\b|[A-Z_0-9]+_H\b)", words):
            return
        (self.full if alone else self.trailing).add(line)
        last = self.comments[-1] if self.comments else None
        if last and alone and last.line + len(last.lines) == line and last.column == column:
            last.lines.append(words)
            last.words += " " + words.strip()
        else:
            self.comments.append(Text(line, column, words.strip(), [words]))

    def message(self, line, token, joined):
        words = token[token.index("(") + 1:token.rindex(")")] if token[0] == "R" else token[1:-1]
        if joined and self.messages:
            self.messages[-1].words += words
        else:
            self.messages.append(Text(line, 0, words, [words]))


class Tree:
    """The files of the tree, read once each."""

    def __init__(self, files):
        self.files = files
        self.text = {}

    def read(self, path):
        if path not in self.text:
            with open(path, encoding="utf-8", errors="replace") as file:
                self.text[path] = file.read()
        return self.text[path]

    def sources(self, *folders):
        return [path for path in self.files if path.startswith(tuple(folder + "/" for folder in folders)) and CPP.search(path)]

    def pages(self):
        return [path for path in self.files if path.endswith(".md") and (
            path in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") or path.startswith(("docs/", "examples/", "bench/")))]

    def scripts(self):
        # tests/tree/ has the habits as patterns and bad examples.
        return [path for path in self.files if not path.startswith(("tests/tree/", "tests/data/", "third_party/")) and (
            path.endswith((".sh", ".py", ".yaml", ".yml", ".sbatch", ".cmake", "CMakeLists.txt", "Makefile")) or
            path.startswith(".ci/"))]


class Allowed:
    """Places where a habit or an unknown name may stay: `KIND FILE TEXT`; FILE may be a pattern, /TEXT/ is an expression."""

    def __init__(self, tree):
        self.entries = []
        if ALLOWED in tree.files:
            for line in tree.read(ALLOWED).split("\n"):
                fields = line.split("#")[0].split(None, 2)
                if len(fields) == 3:
                    self.entries.append((fields[0], fields[1], fields[2].strip()))
        self.used = set()

    @staticmethod
    def matches(text, words):
        return re.search(text[1:-1], words) if text[0] == "/" and text[-1] == "/" else text in words

    def __call__(self, kind, path, words):
        for entry in self.entries:
            if entry[0] == kind and fnmatch.fnmatch(path, entry[1]) and self.matches(entry[2], words):
                self.used.add(entry)
                return True
        return False


def prose_of_page(text):
    """Yields (line number, words) for the lines of a Markdown page outside its code blocks."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*```", line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def wrapped_lines(tree):
    """Yields (path, line number, line) for the lines of pages that are to be wrapped.

    Tables and code are not, nor is a line that is a single link or a single span of code, nor a generated page.
    """
    for path in tree.pages():
        if "\nGenerated from " in tree.read(path)[:400]:
            continue
        for number, line in prose_of_page(tree.read(path)):
            alone = re.fullmatch(r"\s*(?:[-*] )?(?:`[^`]*`|!?\[[^\]]*\]\([^)]*\))[.;:,]?", line)
            if not line.lstrip().startswith("|") and not alone:
                yield path, number, line


def prose_of_script(text):
    """Yields (line number, words) for the comments of a script."""
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*# (.*)", line)
        if match:
            yield number, match.group(1)


def is_prose(words):
    """Whether a string literal is a sentence or a part of one, not data."""
    return len(re.findall(r"[A-Za-z]{2,}", words)) >= 3 and " " in words and not re.search(r"[{}<>]\s*[\"/]|\bfunction\b", words)


def line_of(comment, offset):
    """Returns the line that holds the character of a comment's `words` at an offset."""
    for number, each in enumerate(comment.lines):
        offset -= len(each.strip()) + 1
        if offset < 0:
            return comment.line + number
    return comment.line


def habits(tree, sources, allowed):
    """Yields (habit, path, line, excerpt) for everything that one of the ten habits matches."""
    def look(path, kind, words, line_at):
        plain = re.sub(r"`[^`]*`", lambda code: "`" * len(code.group(0)), words)
        for name, _, pattern, where in HABITS:
            if where == "prose" or kind == "comment":
                for match in pattern.finditer(plain):
                    excerpt = " ".join(words[max(0, match.start() - 24):match.end() + 40].split())
                    if name == "is_no" and match.group(0).endswith("None"):
                        continue  # Python's
                    if not allowed(name, path, excerpt):
                        yield name, path, line_at(match.start()), excerpt.strip()

    for source in sources:
        for comment in source.comments:
            yield from look(source.path, "comment", comment.words, lambda offset: line_of(comment, offset))
        if not source.path.startswith("fuzz/"):
            for message in source.messages:
                if is_prose(message.words):
                    yield from look(source.path, "message", message.words, lambda offset: message.line)
    for path in tree.pages():
        for number, words in prose_of_page(tree.read(path)):
            yield from look(path, "page", words, lambda offset: number)
    for path in tree.scripts():
        for number, words in prose_of_script(tree.read(path)):
            yield from look(path, "script", words, lambda offset: number)


# A file of the kinds below, with or without folders, patterns and {h,cc}; the tail of a longer path does not count.
FILE_NAME = re.compile(r"(?<![\w/.*<>}{…:%$-])(?:\./|\.\./)*([A-Za-z0-9_][\w./*{},-]*\.(?:h|cc|cu|cuh|md|sh|cmake))\b(?![\w*/(])")
QUOTED = re.compile(r"`([^`\n]+)`")
CALL = re.compile(r"(?<![\w.:/>`-])([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)\(\)")
# A name with underscores; my_step stands for any name, and dw_n is mathematics.
SNAKE = re.compile(r"(?<![\w./:<>-])(?!my_|sm_\d)[a-z][a-z0-9]+(?:_[a-z0-9]{2,})+\b(?![\w./*:])")
NAME = re.compile(r"^[A-Za-z_]\w*(?:(?:::|\.|->)~?[A-Za-z_]\w*)*(?:\(\))?$")
CAMEL = re.compile(r"^(?:[A-Z][a-z0-9]+){2,}$|^[A-Z][A-Za-z0-9]*[a-z][A-Z]\w*$")


def unknown_names(tree, sources, allowed):
    """Yields (path, line, message) for files and identifiers that comments and docs name and the tree does not have."""
    known = set()
    for source in sources:
        known.update(re.findall(r"[A-Za-z_]\w*", source.code))
    pages = set(tree.pages())
    for path in tree.files:
        if path not in pages and not CPP.search(path) and not path.endswith((".bin", ".png", ".svg")) and \
                not path.startswith(("tests/data/", "third_party/", "tests/tree/")):
            known.update(re.findall(r"[A-Za-z_]\w*", tree.read(path)))
    for path in tree.files:
        known.update(re.findall(r"\w+", path))
    endings = set()
    for path in tree.files:
        parts = path.split("/")
        endings.update("/".join(parts[index:]) for index in range(len(parts)))

    def file_known(name):
        name = re.sub(r"^(?:\.\.?/)+", "", name)
        if name in endings or name + ".in" in endings or re.search(r"(?:^|/)(?:[xy]|NN)[._-]", name):
            return True  # x.h, x_test.cc and NN-name.md stand for any name
        braces = re.match(r"(.*)\{([^}]*)\}(.*)", name)
        if braces:
            return all(file_known(braces.group(1) + each + braces.group(3)) for each in braces.group(2).split(","))
        return "*" in name and any(fnmatch.fnmatchcase(each, name) for each in endings)

    def look(path, number, words, comment=False):
        for match in FILE_NAME.finditer(words):
            name = match.group(1)
            if not file_known(name) and not allowed("path", path, name):
                yield path, number, f"there is no file {name}"
        seen = set()
        for match in QUOTED.finditer(words):
            name = match.group(1)
            if NAME.match(name) and not re.search(r"\.(?:h|cc|cuh?|md|sh|cmake|py|jsonl?|txt|yaml|bin|idx)$", name) and (
                    name.endswith("()") or "::" in name or CAMEL.match(name) or "_" in name):
                seen.add(name)
        for match in CALL.finditer(QUOTED.sub(" ", words)):
            if len(match.group(1)) > 2:
                seen.add(match.group(1) + "()")
        if comment:
            seen.update(match.group(0) for match in SNAKE.finditer(QUOTED.sub(" ", words)))
        for name in sorted(seen):
            missing = [part for part in re.findall(r"[A-Za-z_]\w*", name)
                       if part not in known and part + "_" not in known and  # a member
                       re.sub(r"_test$", "", part) not in known]  # pipeline_test is a program
            if missing and not name.startswith(("std::", "at::", "torch::", "c10::")) and not allowed("name", path, name):
                yield path, number, f"`{name}`: the code has no {missing[0]}"

    for source in sources:
        if source.path.startswith("tests/"):
            continue
        for comment in source.comments:
            for offset, words in enumerate(comment.lines):
                yield from look(source.path, comment.line + offset, words, True)
    for path in tree.pages():
        for number, words in prose_of_page(tree.read(path)):
            yield from look(path, number, words)


def broken_layout(sources):
    """Yields (path, line, message) for comment lines that are too long, and tables, lists and rulers that were cut."""
    for source in sources:
        for number in sorted(source.full | source.trailing):
            width = len(source.raw[number - 1])
            if width > COLUMNS:
                yield source.path, number, f"a comment up to column {width}; {COLUMNS} is the limit"
        for comment in source.comments:
            for index in range(1, len(comment.lines)):
                message = cut(source, comment, index)
                if message:
                    yield source.path, comment.line + index, message


def cut(source, comment, index):
    """Says what a formatter has broken before line `index` of a comment, or returns None.

    It moves what lies beyond the limit to a line of its own, so that line is short, and its first word had no room above.
    """
    before, words = comment.lines[index - 1], comment.lines[index]
    after = comment.lines[index + 1] if index + 1 < len(comment.lines) else ""
    text = words.strip()
    if re.match(r"\s*[-=]{20,}", before) and (re.fullmatch(r"[-=]+", text) or (not after and len(text) <= 40)):
        return "a ruler that was cut in two"
    full = len(source.raw[comment.line + index - 2])
    if not text or len(text) > 30 or full + 1 + len(text.split()[0]) <= COLUMNS or indent(words) != indent(before):
        return None
    if re.search(r"\S {2,}\S", before) and not re.search(r"\S {2,}\S|[;{}]$", words) and indent(words) > 1:
        return f'"{text}" is the rest of the row above: a table that was cut'
    if re.match(r" +(?:\d+\.|[-*]) ", before) and not re.match(r" +(?:\d+\.|[-*]) ", words):
        return f'"{text}" is the rest of the item above: a list that was cut'
    if indent(after) > indent(words) > 1 and not re.search(r"[;{}]$", words):
        return f'"{text}" is the rest of the line above: a table or list that was cut'
    if not re.search(r"[.:;,!?]$", text) and after.strip() and indent(after) == indent(words) and \
            len(text) + 1 + len(after.split()[0]) < 80 and not re.match(r"[A-Z]", after.strip()):
        return f'"{text}" is the rest of the line above: a paragraph that was cut'
    return None


def indent(words):
    return len(words) - len(words.lstrip())


def check(tree, update):
    """Prints every problem and returns the exit status."""
    problems = 0

    def problem(place, message):
        nonlocal problems
        problems += 1
        print(f"{place}: {message}")

    allowed = Allowed(tree)
    folders = ("src", "bench", "examples", "fuzz", "python", "tests")
    sources = [Source(path, tree.read(path)) for path in tree.sources(*folders, "cmake")]
    read = [source for source in sources if source.path.startswith(tuple(each + "/" for each in folders))]

    ceilings = {}
    if CEILING in tree.files:
        for line in tree.read(CEILING).split("\n"):
            fields = line.split("#")[0].split()
            if len(fields) == 2:
                ceilings[fields[0]] = int(fields[1])
    found = {}
    for name, path, line, excerpt in habits(tree, read, allowed):
        found.setdefault(name, []).append((path, line, excerpt))
    lower = []
    for name, advice, _, _ in HABITS:
        places, ceiling = found.get(name, []), ceilings.get(name, 0)
        if len(places) > ceiling:
            for path, line, excerpt in places:
                print(f"{path}:{line}: {name}: …{excerpt}…")
            problem(CEILING, f"{name}: {len(places)} places, at most {ceiling} are allowed; write: {advice}")
        elif len(places) < ceiling:
            lower.append((name, ceiling, len(places)))
    if update and CEILING in tree.files:
        text = tree.read(CEILING)
        for name, _, count in lower:
            text = re.sub(rf"(?m)^{name} +\d+", f"{name} {count}", text)
        with open(CEILING, "w", encoding="utf-8") as file:
            file.write(text)
    for name, ceiling, count in lower:
        done = "lowered" if update else "tests/tree/check_words.sh ROOT --update lowers it"
        print(f"note: {name}: {count} places, the ceiling was {ceiling}; {done}")
    for path, line, message in unknown_names(tree, sources, allowed):
        problem(f"{path}:{line}", message)
    for path, line, message in broken_layout(sources):
        problem(f"{path}:{line}", message)
    for path, number, line in wrapped_lines(tree):
        if len(line) > PAGE_COLUMNS:
            problem(f"{path}:{number}", f"a line of {len(line)} columns; pages wrap at {PAGE_COLUMNS}")
    for entry in allowed.entries:
        if entry not in allowed.used:
            print(f"note: {ALLOWED}: nothing needs: {' '.join(entry)}")
    if problems:
        print(f"{problems} problems")
    return 1 if problems else 0


def without_arguments(text):
    """Returns a declaration without its template arguments."""
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def declarations(source):
    """Yields (kind, first line, last line, text) for each public function and type of a header, in order.

    Follows braces: namespaces are entered, classes too while they are public, bodies of functions are not.
    """
    code = TOKEN.sub(lambda match: '""' if match.group(0)[0] in '"R' else "' '", source.code)
    code = re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*$", "", code)
    stack = ["namespace"]
    line, statement, first, parens = 1, "", 0, 0
    for char in code:
        if char == "\n":
            line += 1
        if char in "{};" and parens == 0:
            head = " ".join(statement.split())
            head = re.sub(r"^(?:(?:public|private|protected) ?: ?)+", "", head)
            head = re.sub(r"\[\[[^\]]*\]\]|alignas\([^)]*\)", "", head).strip()
            outer = stack[-1]
            open_to = outer in ("namespace", "public")
            plain = re.sub(r"^template ?<[^{;]*?> ?(?=class|struct|enum|union|[A-Za-z_])", "", head)
            is_type = re.match(r"(?:class|struct|union|enum)\b", plain)
            bare = without_arguments(re.sub(r"operator ?[^\w\s(]+", "operator", plain))
            is_function = (not is_type and re.search(r"\w ?\(", bare) and not re.search(r"^[^(]*=", bare) and
                           not re.match(r"(?:using|static_assert|friend|typedef|extern \"\"|if|for|while|switch|return)\b", plain))
            if is_type and re.match(r"template ?< ?>", head):
                is_type = None  # a specialization belongs to the type that it is for
            if char == "{":
                if open_to and is_type:
                    yield "type", first, line, head
                    kind = "values" if plain.startswith("enum") else ("private" if plain.startswith("class") else "public")
                    stack.append(kind)
                elif outer == "namespace" and re.match(r"(?:inline )?namespace\b|extern", head):
                    stack.append("namespace" if not re.search(r"\b(?:internal|detail)\b", head) else "body")
                else:
                    if open_to and is_function:
                        yield "function", first, line, head
                    stack.append("body" if not (open_to and not is_function and head) else "value")
                if stack[-1] != "value":
                    statement, first = "", 0
                continue
            if char == "}":
                closed = stack.pop() if len(stack) > 1 else "namespace"
                if closed != "value":
                    statement, first = "", 0
                continue
            if open_to and is_function:
                yield "function", first, line, head
            statement, first = "", 0
            continue
        if char == "(":
            parens += 1
        elif char == ")":
            parens = max(0, parens - 1)
        if stack[-1] in ("body", "values", "value"):
            continue
        if char == ":" and stack[-1] in ("public", "private"):
            access = re.search(r"(?:^|\s)(public|private|protected)\s*$", statement)
            if access:
                stack[-1] = "public" if access.group(1) == "public" else "private"
                statement, first = "", 0
                continue
        if not char.isspace() and not first:
            first = line
        statement += char


def documented(sources):
    """Counts {kind: [documented, all]} in public headers.

    A comment counts for the declarations right under it, up to an empty line, and the one that opens a header for those that it
    names. What is defaulted, deleted, overridden or a destructor needs none.
    """
    counts = {"functions": [0, 0], "functions but getters": [0, 0], "types": [0, 0]}
    for source in sources:
        if not source.path.endswith((".h", ".cuh")) or "_internal" in source.path:
            continue
        opening = source.comments[0].words if source.comments and source.comments[0].line == 1 else ""
        for kind, first, last, head in declarations(source):
            if kind == "function" and re.search(r"= ?(?:default|delete)$|\boverride\b|\bfinal$|~", head):
                continue
            name = re.search(r"(\w+)(?: final)?(?: ?:.*)?$" if kind == "type" else r"(\w+) ?\(", without_arguments(head))
            said = any(line in source.trailing or line in source.full for line in range(first, last + 1)) or (
                name is not None and re.search(rf"\b{name.group(1)}\b", opening) is not None)
            line = first - 1
            while not said and line > 0 and source.raw[line - 1].strip():
                said = line in source.full
                above = source.raw[line - 1]
                if re.match(r"\s*(?:(?:public|private|protected):|(?:class|struct|union|namespace)\b.*\{$)", above) and \
                        indent(above) < indent(source.raw[first - 1]):
                    break
                line -= 1
            kinds = ["types"] if kind == "type" else ["functions"]
            if kind == "function" and not re.search(r"\(\) const(?: noexcept)?$", head):
                kinds.append("functions but getters")
            for each in kinds:
                counts[each][0] += said
                counts[each][1] += 1
            if not said and LIST_BARE:
                print(f"{source.path}:{first}: no comment: {head}")
    return counts


def measure(tree):
    """Prints the measures."""
    kinds = [
        ("headers", lambda path: path.startswith("src/") and path.endswith(".h")),
        ("sources", lambda path: path.startswith("src/") and path.endswith(".cc")),
        ("CUDA", lambda path: path.startswith("src/") and path.endswith((".cu", ".cuh"))),
        ("src", lambda path: path.startswith("src/") and path.endswith((".h", ".cc", ".cu", ".cuh"))),
        ("tests", lambda path: path.startswith("tests/") and path.endswith((".h", ".cc", ".cu", ".cuh"))),
    ]
    sources = [Source(path, tree.read(path)) for path in tree.sources("src", "bench", "examples", "fuzz", "python", "tests")]
    print(f"{'files':10} {'number':>7} {'code':>8} {'comments':>9} {'trailing':>9} {'full-line':>10} {'with trailing':>14}")
    for kind, belongs in kinds:
        chosen = [source for source in sources if belongs(source.path)]
        full = sum(len(source.full) for source in chosen)
        trailing = sum(len(source.trailing) for source in chosen)
        code = sum(1 for source in chosen for number, line in enumerate(source.raw, 1)
                   if line.strip() and number not in source.full)
        print(f"{kind:10} {len(chosen):7} {code:8} {full:9} {trailing:9} {full / max(1, code):10.3f} "
              f"{(full + trailing) / max(1, code):14.3f}")
    long = [source for source in sources if re.match(r"src/.*\.(?:cc|cu)$", source.path) and len(source.raw) > 101]
    bare = [source for source in long if not any(line in source.full for line in range(1, 4)) and not opens(source)]
    print(f"\nsources of more than 100 lines: {len(long)}, without an opening comment: {len(bare)}")
    for kind, (said, number) in documented([source for source in sources if source.path.startswith("src/")]).items():
        print(f"public {kind} documented: {said} of {number}, {said / max(1, number):.3f}")
    print("\nhabits, outside of tests/tree/allowed_words.txt")
    counts = {name: [0, 0, 0] for name, *_ in HABITS}
    for name, path, _, _ in habits(tree, sources, Allowed(tree)):
        counts[name][1 if path.endswith(".md") else 2 if path.startswith("tests/") else 0] += 1
    for name, (code, pages, tests) in counts.items():
        print(f"  {name:14} {code + pages + tests:5}   (code {code}, docs {pages}, tests {tests})")
    print(f"  {'all':14} {sum(sum(each) for each in counts.values()):5}")
    broken = list(broken_layout(sources))
    over = sum(1 for *_, message in broken if message.startswith("a comment up to"))
    print(f"\nbroken tables, lists and rulers in comments: {len(broken) - over}")
    print(f"comment lines of more than {COLUMNS} columns: {over}")
    print(f"names that do not exist: {len(list(unknown_names(tree, sources, Allowed(tree))))}")
    print(f"lines of README.md: {tree.read('README.md').count(chr(10)) if 'README.md' in tree.files else 0}")
    longest = (0, "", 0)
    for path, number, line in wrapped_lines(tree):
        longest = max(longest, (len(line), path, number))
    print(f"longest line of a page, outside of tables and code: {longest[0]} ({longest[1]}:{longest[2]})")


def opens(source):
    """Whether a source has a comment before its first declaration: on top, after the includes or in its namespace."""
    for number, line in enumerate(source.raw, 1):
        if number in source.full:
            return True
        if line.strip() and not re.match(r"#|namespace\b|using\b|\s*$", line):
            return False
    return False


def main():
    tree = Tree([line.rstrip("\n") for line in sys.stdin])
    if sys.argv[1] == "measure":
        measure(tree)
        return 0
    return check(tree, sys.argv[1] == "update")


sys.exit(main())
