"""Makes trained_bpe.json: what the trainer of Hugging Face's tokenizers makes of the golden strings.

    python make_bpe.py > trained_bpe.json        (tokenizers 0.23)

For each way to cut texts into words: "tokens" by id and "merges", as pairs of tokens; and ids of some texts.
"""
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
QWEN2 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CASES = [("gpt2", GPT2, 700, 2), ("qwen2", QWEN2, 700, 2), ("qwen2", QWEN2, 5000, 3), ("gpt2", GPT2, 300, 0)]


def corpus():
    texts = json.loads((HERE / "../golden/hf/tokenizer/strings.json").read_text(encoding="utf-8"))["strings"]
    for chat in json.loads((HERE / "../golden/hf/chat/messages.json").read_text(encoding="utf-8")):
        texts += [message["content"] for message in chat["messages"] if message["content"]]
    return texts


def main():
    texts = corpus()
    results = []
    for style, pattern, size, frequency in CASES:
        tokenizer = Tokenizer(models.BPE())
        if style == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=size, min_frequency=frequency, special_tokens=SPECIAL, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        model = json.loads(tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        results.append({"style": style, "vocab_size": size, "min_frequency": frequency, "tokens": tokens, "merges": model["merges"],
                        "ids": [tokenizer.encode(text).ids for text in texts[:40]]})
    json.dump({"special_tokens": SPECIAL, "cases": results}, sys.stdout, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
