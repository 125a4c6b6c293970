"""Writes parts.json: what Hugging Face's tokenizers makes of every kind of component, for parts_test.cc.

python make_parts.py  (tokenizers 0.23.3, sentencepiece 0.2.2 for the table of Precompiled). Deterministic.
"""
import io
import json
import pathlib
import random

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TEXTS = json.loads((HERE / "../golden/hf/tokenizer/strings.json").read_text())["strings"]
EXTRA = [
    "Hello world", " leading", "trailing ", "  two  spaces  ", "a-b_c.d", "don't stop", "x1y22z333", "¼ ½ ² Ⅷ ①", "A\u0301 é",
    "ﬁ ﬂ Å ①②", "\u1100\u1161\u11a8 각", "İstanbul ΑΒΓΣ ẞß", "tab\tnew\nline\r\nend", "a\u00a0b\u2003c\u3000d", "日本語テスト",
    "a\u200db\u200cc", "ⓐⓑ 🅰🅱", "e\u0301\u0323x", "\u0344 \u0958 \u2126", "<s> a </s>", "a<mask>b", "▁▁a▁b", "...!!!", "ab,cd;ef",
    "aaaa bbbb", "the cat sat on the mat", "word\u0001\u0000x", "नमस्ते", "ÀÁÂ àáâ", "😀👍🏽👨‍👩‍👧", "\ufeffbom", "x\u2028y\u2029z", "",
    "end\u0085next\u180emn", "ｆｕｌｌ ｗｉｄｔｈ", "ſt ﬆ K Å",
]
rng = random.Random(7)


def random_text():
    pools = ["abcXYZ", "  \t\n", "0123456789", ".,;:!?-_'\"", "éüßÅ\u0301\u0323", "漢字かな", "😀👍\u200d", "<s></s>[MASK]", "\u00a0\u2003"]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 40)))


STRINGS = EXTRA + [t for t in TEXTS if len(t) < 60][::3] + [random_text() for _ in range(60)]


def config(component):
    return json.loads(component.__getstate__())


def charsmap():
    """The table of a few rules, as SentencePiece compiles it."""
    rules = HERE / "rules.tsv"
    rules.write_text("41\t61\n41 30A\tE5\nFB01\t66 69\n2126\t3A9\n20 20\t20\nFF21\t41\n1F600\t3A 29\n308\t\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d"] * 10), model_writer=model, vocab_size=12, model_type="bpe",
        normalization_rule_tsv=str(rules), minloglevel=2)
    rules.unlink()
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


NORMALIZERS = [
    normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip(),
    normalizers.Strip(left=False, right=True), normalizers.Strip(left=True, right=False), normalizers.StripAccents(),
    normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), normalizers.Prepend("▁"), normalizers.Nmt(),
    normalizers.Replace(" ", "▁"), normalizers.Replace("aa", "a"), normalizers.Replace(Regex(r"\s+"), " "),
    normalizers.Replace(Regex(r" {2,}"), "▁"), normalizers.Replace(Regex(r"[\p{P}&&[^.]]"), ""), normalizers.Replace(Regex("x*"), "-"),
    normalizers.BertNormalizer(), normalizers.BertNormalizer(clean_text=False, lowercase=False),
    normalizers.BertNormalizer(strip_accents=False, handle_chinese_chars=False), normalizers.ByteLevel(),
    normalizers.Precompiled(charsmap()),
]
REGEXES = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"\p{N}{1,3}+", r"a{2}?", r"a{,2}", r"^b|b$", r"(?m:.)+", r".+", r"\h+", r"\H+", r"[a[bc]]+", r"[^a[bc]]+", r"[a-c&&b-d&&c]", r"\v", r"\R",
    r"\u6f22", r"\x{6f22}", r"\xe6\xbc\xa2", r"\x41", r"\p{Letter}+", r"\p{Lowercase_Letter}+", r"\p{lowercase letter}", r"\p{^L}+", r"\P{L}+", r"\P{^L}+",
    r"[[:alpha:]]+", r"[[:^alpha:]]+", r"[[:punct:]]", r"[[:space:]]+", r"[[:alnum:]]+", r"[[:word:]]+", r"[[:upper:]]", r"[[:lower:]]+", r"[[:digit:]]+",
    r"[[:xdigit:]]+", r"[[:blank:]]+", r"[[:cntrl:]]", r"\p{Any}", r"\p{ASCII}+",
    r"\d+", r"\D+", r"\w+", r"\W+", r"\s+", r"\S+", r"[\w\s]+", r"[^\w]+", r"[\W]+", r"[^\W]+", r"[^\S\r\n]+", r"[\D]+", r"[\S]+", r"[\H]+",
    r"\Aa|b\z", r"a\Z", r"(?<=a)b", r"(?<!a)b", r"x*", r"(?i)K|å", r"a(?i)b|C", r"(?i:a(?-i)B)", r"[]a]", r"[a\-z]+", r"[\w-]+", r"[-a]+", r"[a-]+", r"\b", r"\B",
    r"(?<n>a)\k<n>", r"(a|b)\1", r"\/", r"\q", r"\N+", r"\O+", r"{", r"a{", r"a{x}", r"a{2,}", r"(?>a+)b?", r"(?#comment)a", r"[\b]", r"\012", r"\cA", r"[\x{41}-\x{43}]+",
    r"[\u0041-\u0043]+", r"\p{Hiragana}+", r"\p{Greek}+", r"\p{Emoji}", r"\p{Alphabetic}+", r"\p{Uppercase}", r"\p{White_Space}+",
    r"a+*", r"(ab)+?", r"a??", r"\p{Sc}|\p{Sm}", r"[^\p{L}&&\p{Lu}]+", r"[\p{L}\p{N}&&[^a-z]]+", r"[a-z&&[^aeiou]]+", r"[^[^a-c]]+", r"\p{Graph}+", r"\p{Print}+",
]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PRE_TOKENIZERS = [pre_tokenizers.Split(Regex(r), "isolated") for r in REGEXES]
PRE_TOKENIZERS += [pre_tokenizers.Split(p, b, invert=i) for b in BEHAVIORS for i in (False, True) for p in (" ", "ab", Regex(r"\d+|a"), Regex("x*"))]
PRE_TOKENIZERS += [
    pre_tokenizers.ByteLevel(), pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    pre_tokenizers.ByteLevel(use_regex=False), pre_tokenizers.Digits(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.FixedLength(3),
    *[pre_tokenizers.Punctuation(b) for b in BEHAVIORS],
    *[pre_tokenizers.Metaspace("▁", s, split=p) for s in ("always", "first", "never") for p in (True, False)],
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "first")]),
    pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]),
    pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits()]), pre_tokenizers.Sequence([]),
]
TOKEN_LISTS = [
    ["▁Hello", "▁world"], ["▁a", "▁", "b▁c"], ["Hello", "Ġworld", "Ċ"], ["<0xE6>", "<0xBC>", "<0xA2>", "x"], ["<0xE6>", "<0xBC>", "x", "<0x41>"],
    ["<0xFF>", "<0x41>"], ["a", "##b", "c", ".", "##d"], ["do", "not", "!", "n't", "'s"], ["ab</w>", "c", "d</w>"], ["a", "a", "<pad>", "a", "|", "b"],
    ["æ", "¼", "¢"], ["Ġé", "漢"], [" ", "  a  ", "a "], ["▁", "▁▁x", "▁"], ["aaa", "aa"], ["H", "##H"], ["<0xzz>", "<0x4>", "<0x411>"],
]
DECODERS = [
    decoders.ByteLevel(), decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace(), decoders.Metaspace("▁", "never"), decoders.Metaspace("▁", "first"),
    decoders.WordPiece(), decoders.WordPiece("##", cleanup=False), decoders.BPEDecoder(), decoders.CTC(), decoders.CTC(cleanup=False),
    decoders.Strip("a", 1, 0), decoders.Replace("▁", " "), decoders.Replace(Regex("a+"), "-"),
    decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    decoders.Sequence([decoders.ByteLevel()]), decoders.Sequence([]),
]

CORPUS = [t for t in TEXTS if t] + ["the cat sat on the mat", "hello world hello there", "the quick brown fox"] * 5


def trained(model, trainer, pre=None, norm=None, corpus=CORPUS):
    t = Tokenizer(model)
    if pre: t.pre_tokenizer = pre
    if norm: t.normalizer = norm
    t.train_from_iterator(corpus, trainer)
    return json.loads(t.to_str())["model"]


def make_models():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    out = {
        "bpe_bytes": trained(models.BPE(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False), byte_level),
        "bpe_suffix": trained(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"),
                              trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]"], end_of_word_suffix="</w>", limit_alphabet=60, show_progress=False),
                              pre_tokenizers.WhitespaceSplit()),
        "bpe_prefix": trained(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"),
                              trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]"], continuing_subword_prefix="##", limit_alphabet=60, show_progress=False),
                              pre_tokenizers.Whitespace()),
        "bpe_fallback": trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
                                trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, limit_alphabet=70, show_progress=False),
                                pre_tokenizers.Metaspace("▁", "first")),
        "unigram": trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False),
                           pre_tokenizers.Metaspace(), corpus=[t for t in CORPUS if all(ord(c) < 0x180 for c in t)]),
        "wordpiece": trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20),
                             trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=60, show_progress=False),
                             pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()),
        "wordlevel": trained(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=100, special_tokens=["[UNK]"], show_progress=False),
                             pre_tokenizers.Whitespace()),
    }
    unk = dict(out["bpe_fallback"]); unk.update(byte_fallback=False, fuse_unk=True); out["bpe_fuse"] = unk
    unk = dict(unk); unk.update(fuse_unk=False); out["bpe_unk"] = unk
    unk = dict(unk); unk.update(unk_token=None); out["bpe_drop"] = unk
    # A vocabulary with tokens that no merges reach, which ignore_merges uses.
    ignore = json.loads(json.dumps(out["bpe_bytes"])); ignore["ignore_merges"] = True
    for word in ("Ġquick", "Hello", "Ġthere", "æ¼¢åŃĹ"):
        ignore["vocab"].setdefault(word, len(ignore["vocab"]))
    out["bpe_ignore_merges"] = ignore
    legacy = json.loads(json.dumps(out["bpe_bytes"])); legacy["merges"] = [" ".join(m) for m in legacy["merges"]]; out["bpe_legacy"] = legacy
    fallback = json.loads(json.dumps(out["unigram"])); fallback["byte_fallback"] = True
    fallback["vocab"] += [[b, -20.0] for b in bytes_]; out["unigram_fallback"] = fallback
    return out


def added(*specs):
    return [AddedToken(c, **k) for c, k in specs]


def make_tokenizers():
    """(model name, parts set on it, added tokens)."""
    byte_level = dict(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel())
    llama = dict(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                 decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]))
    meta = dict(pre_tokenizer=pre_tokenizers.Metaspace("▁", "first"), decoder=decoders.Metaspace("▁", "first"))
    template = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    special = dict(special=True, normalized=False)
    yield "bpe_bytes", byte_level, []
    yield "bpe_bytes", dict(byte_level, pre_tokenizer=pre_tokenizers.ByteLevel()), []
    yield "bpe_bytes", dict(byte_level, normalizer=normalizers.NFC()), added(("<s>", special), ("</s>", special), ("cat", dict(single_word=True)))
    yield "bpe_bytes", dict(byte_level, normalizer=normalizers.NFKC()), added(("ﬁ", dict(normalized=True)), ("<mask>", dict(lstrip=True, **special)), ("x", dict(rstrip=True)))
    yield "bpe_bytes", dict(byte_level, normalizer=normalizers.Lowercase()), added(("HELLO", dict(normalized=True)), ("World", dict(normalized=False)), ("[MASK]", dict(special=True, normalized=True)))
    yield "bpe_bytes", byte_level, added(("a", {}), ("ab", {}), ("abc", {}), ("b c", dict(lstrip=True, rstrip=True)), ("  ", {}), ("\n", dict(rstrip=True)))
    yield "bpe_bytes", byte_level, added(("t", dict(single_word=True)), ("te", dict(single_word=True)), ("é", dict(single_word=True, lstrip=True)), (".", dict(single_word=True)))
    yield "bpe_legacy", byte_level, []
    yield "bpe_ignore_merges", byte_level, []
    yield "bpe_suffix", dict(pre_tokenizer=pre_tokenizers.WhitespaceSplit(), decoder=decoders.BPEDecoder()), []
    yield "bpe_prefix", dict(pre_tokenizer=pre_tokenizers.Whitespace(), decoder=decoders.WordPiece()), []
    for name in ("bpe_fallback", "bpe_fuse", "bpe_unk", "bpe_drop"):
        yield name, dict(llama, post_processor=template), added(("<s>", special), ("</s>", special))
        yield name, meta, []
    yield "bpe_fallback", {}, []  # neither cut nor decoded
    yield "unigram", dict(meta, post_processor=template), added(("<s>", special))
    yield "unigram", dict(meta, normalizer=normalizers.Precompiled(charsmap())), []
    yield "unigram_fallback", dict(pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])), []
    yield "wordpiece", dict(normalizer=normalizers.BertNormalizer(), pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece(),
                            post_processor=processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))), added(("[MASK]", special), ("[CLS]", special))
    yield "wordlevel", dict(pre_tokenizer=pre_tokenizers.Whitespace()), []
    yield "bpe_bytes", dict(byte_level, post_processor=processors.Sequence([processors.ByteLevel(), processors.RobertaProcessing(("</s>", 602), ("<s>", 601))])), \
        added(("<pad>", special), ("<s>", special), ("</s>", special))


def main():
    result = {"tokenizers": tokenizers.__version__, "strings": STRINGS, "models": make_models()}
    result["normalizers"] = [{"config": config(n), "texts": [n.normalize_str(s) for s in STRINGS]} for n in NORMALIZERS]
    result["pre_tokenizers"] = [{"config": config(p), "pieces": [[t for t, _ in p.pre_tokenize_str(s) if t] for s in STRINGS[::2]]} for p in PRE_TOKENIZERS]
    result["decoders"] = [{"config": config(d), "cases": [{"tokens": t, "text": d.decode(t)} for t in TOKEN_LISTS]} for d in DECODERS]
    result["cases"] = []
    for name, parts, tokens in make_tokenizers():
        document = {"version": "1.0", "model": result["models"][name], "added_tokens": []}
        t = Tokenizer.from_str(json.dumps(document))
        for key, part in parts.items(): setattr(t, key, part)
        t.add_tokens(tokens)
        saved = json.loads(t.to_str())
        case = {"model": name, "parts": {k: saved[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")}}
        ids = [t.encode(s, add_special_tokens=False).ids for s in STRINGS]
        case["ids"] = ids
        case["special"] = [t.encode(s).ids for s in STRINGS[:5]]
        case["decoded"] = [t.decode(i, skip_special_tokens=False) for i in ids]
        case["skipped"] = [t.decode(i, skip_special_tokens=True) for i in ids]
        t.encode_special_tokens = True
        case["as_text"] = [t.encode(s, add_special_tokens=False).ids for s in STRINGS[:40]]
        result["cases"].append(case)
    (HERE / "parts.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
