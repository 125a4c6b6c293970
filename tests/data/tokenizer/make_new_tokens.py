"""Writes new_tokens.json: what transformers makes of tokens that are added to a tokenizer, for new_tokens_test.cc.

python make_new_tokens.py  (transformers 5.23.0, tokenizers 0.23.3). Deterministic.
"""
import json
import pathlib
import tempfile

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
CORPUS = ["a cat sat on the mat", "the bright star", "<call> is a token", "a kilonova is bright"] * 4
TEXTS = [
    "a kilonova is bright", "A KILONOVA, kilonovas", "<call>the cat</call>", " <call> sat ", "<CALL>", "kilo nova", "the<x>cat",
    "star star", "", "bright<call><x>kilonova</call>", "ünbekannt <x>",
]
TOKENS = ["kilonova", "star", "<x>", "Bright Idea"]
SPECIAL = ["<call>", "</call>", "<s>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def lower_case():
    """A normalizer, so that it matters in which text a token is searched for."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["[UNK]", "<s>"], show_progress=False))
    tokenizer.add_tokens([AddedToken("<old>", normalized=False)])
    return tokenizer


def case(tokenizer):
    before = tokenizer.to_str()
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(before))
    counts = [fast.add_tokens(TOKENS), fast.add_tokens(SPECIAL, special_tokens=True)]
    with tempfile.TemporaryDirectory() as folder:
        fast.save_pretrained(folder)
        saved = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
        reopened = AutoTokenizer.from_pretrained(folder)
    ids = [fast.encode(text, add_special_tokens=False) for text in TEXTS]
    assert ids == [reopened.encode(text, add_special_tokens=False) for text in TEXTS]
    return {
        "tokenizer": json.loads(before), "tokens": TOKENS, "special": SPECIAL, "counts": counts, "size": len(fast),
        "added_tokens": saved["added_tokens"], "texts": TEXTS, "ids": ids,
        "decoded": [fast.decode(row) for row in ids],
        "without_special": [fast.decode(row, skip_special_tokens=True) for row in ids],
    }


def main():
    cases = {"byte_level": case(byte_level()), "lower_case": case(lower_case())}
    (HERE / "new_tokens.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
