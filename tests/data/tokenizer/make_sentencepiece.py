"""Writes two small SentencePiece models and sentencepiece.json with what the library makes of the golden strings.

python make_sentencepiece.py  (sentencepiece 0.2.2). Deterministic.
"""
import io
import json
import pathlib
import re

import sentencepiece

HERE = pathlib.Path(__file__).parent
TEXTS = json.loads((HERE / "../golden/hf/tokenizer/strings.json").read_text())["strings"]
CORPUS = [line for text in TEXTS for line in text.split("\n") if line.strip() and max(line) < "\u0250"] * 3
REPEATED = re.compile(r"(..?)\1\1", re.DOTALL)  # equal scores: versions of the library choose differently
KINDS = {
    "bpe": dict(model_type="bpe", vocab_size=620, byte_fallback=True, user_defined_symbols=["<sep>"]),
    "unigram": dict(model_type="unigram", vocab_size=260, pad_id=3),
}
result = {"sentencepiece": sentencepiece.__version__, "strings": [t for t in TEXTS if "\0" not in t and not REPEATED.search(t)], "models": {}}
for name, options in KINDS.items():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, normalization_rule_name="identity", hard_vocab_limit=False,
        num_threads=1, minloglevel=2, **options)
    (HERE / f"{name}.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = [processor.encode(text) for text in result["strings"]]
    result["models"][name] = {"size": processor.get_piece_size(), "ids": ids, "decoded": [processor.decode(i) for i in ids]}
(HERE / "sentencepiece.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")
