"""The peer of tokenizer_bench: Hugging Face's tokenizers on the same texts.

tokenizer.py FOLDER THREADS TEXTS…: each text file holds documents that are separated by zero bytes. Prints one JSON line with
the version, the seconds to load, and for each text the seconds to encode it and to decode it again, the number of ids and a checksum.
"""
import json
import os
import sys
import time

folder, threads = sys.argv[1], int(sys.argv[2])
os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
os.environ["RAYON_NUM_THREADS"] = str(threads)
import tokenizers  # noqa: E402  (reads the environment)

start = time.perf_counter()
tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
result = {"version": tokenizers.__version__, "load_s": time.perf_counter() - start, "texts": []}
encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, where there is such a thing
for path in sys.argv[3:]:
    with open(path, encoding="utf-8", newline="") as file:
        documents = file.read().split("\0")
    encode(documents, add_special_tokens=False)  # fills the cache
    start = time.perf_counter()
    encodings = encode(documents, add_special_tokens=False)
    encode_s = time.perf_counter() - start
    ids = [encoding.ids for encoding in encodings]
    start = time.perf_counter()
    tokenizer.decode_batch(ids, skip_special_tokens=False)
    decode_s = time.perf_counter() - start
    checksum = 0
    for document in ids:
        for i in document:
            checksum = (checksum * 31 + i) & 0xFFFFFFFF
    result["texts"].append({"encode_s": encode_s, "decode_s": decode_s, "ids": sum(map(len, ids)), "checksum": checksum})
print(json.dumps(result))
