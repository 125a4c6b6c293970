#!/usr/bin/env python3
"""Makes the reference data of this folder with Megatron-Core's own code.

    python tests/data/megatron/make_megatron.py GPT2_TOKENIZER_JSON      (from the top of the repository)

Needs megatron-core 0.16.1, torch, numpy 2, tokenizers. Paths are relative to the top of the repository because the names
of cache files depend on them. Everything is random with fixed seeds: a second run gives the same files.
"""
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections import OrderedDict

warnings.filterwarnings("ignore")
import numpy
import torch

import megatron.core
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_config import convert_split_vector_to_split_matrix, parse_and_normalize_split
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset, MockGPTLowLevelDataset
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split, get_blend_from_list, normalize

HOME = "tests/data/megatron"
PAIRS = HOME + "/pairs"
EOD, PAD, VOCAB = 0, 99, 100


class Tokenizer:
    """What a dataset asks of one."""

    def __init__(self, vocab_size=VOCAB, eod=EOD, pad=PAD):
        self.vocab_size, self.eod, self.eos, self.pad = vocab_size, eod, eod, pad
        self.unique_identifiers = OrderedDict([("class", "Tokenizer"), ("tokenizer_path", ["päth"]), ("n", str(vocab_size))])


def write_pair(name, dtype, documents):
    """documents: lists of sequences, which are lists of ids."""
    builder = IndexedDatasetBuilder(f"{PAIRS}/{name}.bin", dtype=dtype)
    for document in documents:
        flat = [token for sequence in document for token in sequence]
        builder.add_document(flat, [len(sequence) for sequence in document])
    builder.finalize(f"{PAIRS}/{name}.idx")


def random_documents(seed, lengths, vocab=VOCAB - 1):
    """One sequence a document; each ends with EOD; 0 is an empty document without a sequence, -1 an empty sequence."""
    rng = random.Random(seed)
    documents = []
    for length in lengths:
        sequence = [rng.randrange(1, vocab) for _ in range(length - 1)] + [EOD]
        documents.append([] if length == 0 else [[]] if length < 0 else [sequence])
    return documents


def make_pairs():
    rng = random.Random(7)
    cases = []
    for dtype in (numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.float64, numpy.float32, numpy.uint16):
        documents = [[[rng.randrange(0, 127) for _ in range(rng.randrange(0, 9))] for _ in range(rng.randrange(0, 4))] for _ in range(6)]
        name = f"type_{dtype.__name__}"
        write_pair(name, dtype, documents)
        cases.append({"name": name, "type": dtype.__name__, "documents": documents})
    first, second = cases[7], {"name": "second_uint16", "type": "uint16", "documents": [[[1, 2], [65499]], [], [[3]]]}
    write_pair(second["name"], numpy.uint16, second["documents"])
    cases.append(second)
    builder = IndexedDatasetBuilder(f"{PAIRS}/merged_uint16.bin", dtype=numpy.uint16)
    builder.add_index(f"{PAIRS}/{first['name']}")
    builder.add_index(f"{PAIRS}/{second['name']}")
    builder.finalize(f"{PAIRS}/merged_uint16.idx")
    cases.append({"name": "merged_uint16", "type": "uint16", "documents": first["documents"] + second["documents"]})
    return {"pairs": cases, "merge": {"inputs": [first["name"], second["name"]], "output": "merged_uint16"},
            "vocabulary_types": [[n, DType.optimal_dtype(n).__name__] for n in (1, 50257, 65499, 65500, 65536, 151936)]}


def make_numbers():
    shuffles = []
    for seed, count in ((1234, 10), (1234, 1), (0, 2), (42, 100), (2**32 - 1, 33), (7, 5000)):
        values = numpy.arange(count, dtype=numpy.int32)
        numpy.random.RandomState(seed).shuffle(values)
        shuffles.append({"seed": seed, "count": count, "values": values.tolist()[:100], "md5": hashlib.md5(values.tobytes()).hexdigest()})
    rng = random.Random(3)
    weights = [[rng.random() * 10 ** rng.randrange(-3, 4) for _ in range(n)] for n in (1, 2, 3, 7, 8, 9, 17, 100, 128, 129, 300)]
    splits = []
    for text in ("969, 30, 1", "969,30,1", "99,1,0", "1,1,1", "100,0,0", "1", "0.5,0.25", "0,1,0", "98,2", "[7, 2, 1]"):
        matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(text))
        bounds = [[None if part is None else [int(round(part[0] * float(n))), int(round(part[1] * float(n)))] for part in matrix] for n in (1, 3, 10, 101, 12345)]
        splits.append({"text": text, "matrix": matrix, "counts": [1, 3, 10, 101, 12345], "bounds": bounds})
    blends = []
    for words in (["a"], ["a", "b"], ["30", "a", "70", "b"], ["0.3", " a ", "0.7", "b"], ["a", "b", "c"], ["1e2", "a"], ["3", "a", "b"]):
        prefixes, given = get_blend_from_list(words)
        blends.append({"words": words, "prefixes": list(prefixes), "weights": given})
    texts = ["", "a", "message digest", "x" * 55, "x" * 56, "x" * 63, "x" * 64, "x" * 65, "päth" * 40]
    return {"shuffles": shuffles, "weights": [{"given": w, "normalized": normalize(w)} for w in weights], "splits": splits,
            "blends": blends, "md5": [[t, hashlib.md5(t.encode()).hexdigest()] for t in texts]}


def config(**changes):
    settings = dict(random_seed=1234, sequence_length=16, tokenizer=Tokenizer(), reset_position_ids=False,
                    reset_attention_mask=False, eod_mask_loss=False)
    settings.update(changes)
    return GPTDatasetConfig(**settings)


def sample_of(dataset, index):
    sample = dataset[index]
    allowed = ~sample["attention_mask"][0]
    starts = [int(row.nonzero()[0]) for row in allowed]  # the first token that each may look at
    return {"index": index, "tokens": sample["tokens"].tolist(), "labels": sample["labels"].tolist(),
            "loss_mask": sample["loss_mask"].tolist(), "position_ids": sample["position_ids"].tolist(),
            "part_starts": sorted(set(starts)), "dataset": int(sample.get("dataset_id", 0))}


def cache_files(folder):
    return {name: hashlib.md5(open(os.path.join(folder, name), "rb").read()).hexdigest() for name in sorted(os.listdir(folder))}


def gpt_case(name, pair, split, index_split, samples, shown=3, **changes):
    folder = tempfile.mkdtemp()
    settings = config(blend=([pair], None), split=split, path_to_cache=folder, **changes)
    source = IndexedDataset(pair)
    bounds = settings.split_matrix[index_split.value]
    count = len(source)
    indices = numpy.arange(int(round(bounds[0] * float(count))), int(round(bounds[1] * float(count))), dtype=numpy.int32)
    dataset = GPTDataset(source, pair, indices, samples, index_split, settings)
    result = {"name": name, "pair": pair, "split": split, "index_split": index_split.name, "num_samples": samples,
              "seq_length": settings.sequence_length, "seed": settings.random_seed,
              "drop_last_partial": settings.drop_last_partial_validation_sequence, "pad": settings.tokenizer.pad,
              "reset_position_ids": settings.reset_position_ids, "reset_attention_mask": settings.reset_attention_mask,
              "eod_mask_loss": settings.eod_mask_loss,
              "document_index": dataset.document_index.tolist(), "sample_index": dataset.sample_index.tolist(),
              "shuffle_index": dataset.shuffle_index.tolist(),
              "types": [str(a.dtype) for a in (dataset.document_index, dataset.sample_index, dataset.shuffle_index)],
              "description": dataset.unique_description, "cache": cache_files(folder),
              "samples": [sample_of(dataset, i) for i in list(range(len(dataset)))[:shown] + ([len(dataset) - 1] if len(dataset) else [])]}
    shutil.rmtree(folder)
    return result


def make_gpt():
    rng = random.Random(11)
    write_pair("plain", numpy.uint16, random_documents(1, [rng.randrange(1, 40) for _ in range(40)]))
    write_pair("holes", numpy.int32, random_documents(2, [0, -1, 5, -1, -1, 30, 0, 1, 1, 1, 60, -1, 9, -1, 3, 0, -1]))
    write_pair("long", numpy.uint16, random_documents(3, [400, 3]))
    write_pair("one", numpy.int32, random_documents(4, [50]))
    plain, holes, long, one = (f"{PAIRS}/{n}" for n in ("plain", "holes", "long", "one"))
    source = IndexedDataset(plain)  # its arrays are gone with it
    tokens = int(source.sequence_lengths.sum())
    epoch = (tokens - 1) // 16
    train, valid, test = Split.train, Split.valid, Split.test
    cases = [gpt_case("one epoch", plain, "1,0,0", train, None),
             gpt_case("fewer than an epoch", plain, "1,0,0", train, 5),
             gpt_case("no samples", plain, "1,0,0", train, 0),
             gpt_case("two epochs, the last one separate", plain, "1,0,0", train, epoch + 3),
             gpt_case("two epochs together", plain, "1,0,0", train, 2 * epoch - 1),
             gpt_case("the last epoch at the threshold", plain, "1,0,0", train, 2 * epoch - epoch // 5),
             gpt_case("many epochs", one, "1,0,0", train, 200, random_seed=5),
             gpt_case("many epochs, the last one separate", plain, "1,0,0", train, 4 * epoch + 2),
             gpt_case("split for training", plain, "969, 30, 1", train, 40),
             gpt_case("split for evaluation", plain, "70,20,10", valid, 11),
             gpt_case("split for test", plain, "70,20,10", test, None),
             gpt_case("the partial sample is kept", plain, "0,1,0", valid, None, drop_last_partial_validation_sequence=False),
             gpt_case("the partial sample is kept, several epochs", plain, "0,1,0", valid, epoch + 9, drop_last_partial_validation_sequence=False),
             gpt_case("empty sequences", holes, "1,0,0", train, None),
             gpt_case("empty sequences, several epochs", holes, "1,0,0", train, 30, random_seed=3),
             gpt_case("long sequences", long, "1,0,0", train, 40),
             gpt_case("seq_length 1", one, "1,0,0", train, 60, sequence_length=1),
             gpt_case("seq_length beyond the data", one, "1,0,0", train, 3, sequence_length=120),
             gpt_case("largest seed", plain, "1,0,0", train, 3, random_seed=2**32 - 1)]
    for reset_position, reset_attention, mask in ((True, False, False), (False, True, False), (False, False, True), (True, True, True)):
        cases.append(gpt_case(f"resets {reset_position} {reset_attention} {mask}", holes, "1,0,0", train, None, shown=20,
                              reset_position_ids=reset_position, reset_attention_mask=reset_attention, eod_mask_loss=mask))
    for pad in (EOD, 7):
        cases.append(gpt_case(f"pad {pad}", plain, "0,1,0", valid, None, shown=20, tokenizer=Tokenizer(pad=pad),
                              drop_last_partial_validation_sequence=False))
    return {"vocab_size": VOCAB, "eod": EOD, "tokenizer": Tokenizer().unique_identifiers, "cases": cases}


def describe_split(dataset, shown=4):
    if dataset is None:
        return None
    result = {"size": len(dataset), "samples": [sample_of(dataset, i) for i in range(min(shown, len(dataset)))]}
    if hasattr(dataset, "dataset_index"):
        result.update(dataset_index=dataset.dataset_index.tolist(), dataset_sample_index=dataset.dataset_sample_index.tolist(),
                      description=dataset.unique_description)
    return result


def built(name, options, sizes, **changes):
    """What the reference builds of the options; `options` are ours."""
    folder = tempfile.mkdtemp()
    words = lambda key: get_blend_from_list(options.get(key))
    per_split = [words("train_data_path"), words("valid_data_path"), words("test_data_path")]
    settings = dict(path_to_cache=folder, **changes)
    if options.get("data_path"):
        settings.update(blend=words("data_path"), split=options["split"])
    elif any(per_split):
        settings.update(blend_per_split=per_split)
    cls = MockGPTDataset if options.get("mock_data") else GPTDataset
    datasets = BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config(**settings)).build()
    result = {"name": name, "options": options, "sizes": sizes, "splits": [describe_split(d) for d in datasets], "cache": sorted(os.listdir(folder))}
    shutil.rmtree(folder)
    return result


def make_blends():
    write_pair("few", numpy.uint16, random_documents(5, [20] * 12))
    a, b, c = (f"{PAIRS}/{n}" for n in ("plain", "few", "holes"))
    split = "6,3,1"
    cases = [built("one prefix", {"data_path": [a], "split": split}, [50, 5, 2]),
             built("one prefix with a weight", {"data_path": ["2", a], "split": split}, [50, 5, 2]),
             built("weights", {"data_path": ["0.3", a, "0.7", b], "split": split}, [50, 5, 2]),
             built("many of each", {"data_path": ["1", a, "2", b, "3.5", c], "split": "1,0,0"}, [700, 0, 0]),
             built("by length", {"data_path": [a, b, c], "split": "1,0,0"}, [20, None, None]),
             built("by length, everything", {"data_path": [a, b, c], "split": "1,0,0"}, [None, None, None]),
             built("by length, more than there is", {"data_path": [a, b, c], "split": "1,0,0"}, [10000, 0, 0]),
             built("per split", {"train_data_path": ["0.9", a, "0.1", b], "valid_data_path": [c], "test_data_path": ["1", b]}, [60, 4, 3]),
             built("per split, by length", {"train_data_path": [a, b, c], "valid_data_path": [b, a, c]}, [None, 7, 0]),
             built("mock", {"mock_data": True}, [100, 10, 5])]
    nine = [w for i in range(9) for w in (str(0.1 * (i + 1)), (a, b, c)[i % 3])]
    cases.append(built("nine prefixes", {"data_path": nine, "split": "1,0,0"}, [500, 0, 0]))
    mock = MockGPTLowLevelDataset(Tokenizer())
    lengths = numpy.array(mock.sequence_lengths, dtype=numpy.int32)
    return {"vocab_size": VOCAB, "eod": EOD, "pad": PAD, "tokenizer": Tokenizer().unique_identifiers, "seq_length": 16, "seed": 1234, "cases": cases,
            "mock": {"first": lengths[:10].tolist(), "md5": hashlib.md5(lengths.tobytes()).hexdigest(), "sequence": mock[68].tolist()[:300]}}


def make_corpus(tokenizer_json):
    """As tools/preprocess_data.py of Megatron-LM does, with --append-eod."""
    from tokenizers import Tokenizer as HfTokenizer

    tokenizer = HfTokenizer.from_file(tokenizer_json)
    lines = [{"text": "Hello, world!", "title": "One"}, {"text": "", "title": "an empty document"}, {"title": "Grüße 👋", "text": "naïve café\n\nΩ 你好 \u0000 end"},
             {"text": ["First sentence. ", "", "Second one."], "title": ""}, {"text": "a<|endoftext|>b", "title": "special"},
             {"text": "tail " * 50, "title": "last"}]
    with open(f"{HOME}/corpus.jsonl", "w") as file:
        file.write("".join(json.dumps(line, ensure_ascii=index % 2 == 0) + "\n" for index, line in enumerate(lines)))
    for key in ("text", "title"):
        documents = []
        for line in lines:
            texts = line[key] if isinstance(line[key], list) else [line[key]]
            sequences = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
            sequences = [sequence for sequence in sequences if sequence]
            if sequences:
                sequences[-1].append(tokenizer.token_to_id("<|endoftext|>"))
            documents.append(sequences)
        write_pair(f"corpus_{key}_document", DType.optimal_dtype(tokenizer.get_vocab_size()), documents)


def main():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29876", rank=0, world_size=1)
    shutil.rmtree(PAIRS, ignore_errors=True)
    os.makedirs(PAIRS)
    versions = {"megatron-core": megatron.core.__version__, "numpy": numpy.__version__}
    for name, made in (("indexed_files", make_pairs()), ("numbers", make_numbers()), ("gpt_index", make_gpt()), ("blends", make_blends())):
        with open(f"{HOME}/{name}.json", "w") as file:
            json.dump({"versions": versions, **made}, file, separators=(",", ":"))
            file.write("\n")
    make_corpus(sys.argv[1])


main()
