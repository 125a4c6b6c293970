#!/usr/bin/env python3
"""Writes the tables beside this file, as their own libraries do: pyarrow, pandas and Hugging Face's datasets.

    pip install pyarrow==26.0.1 pandas datasets
    python tests/data/tables/make_tables.py

Each NAME.jsonl holds the rows of the tables NAME.* as JSON, also written by those libraries; versions.json names them.
A second run gives the same rows.
"""

import datetime
import decimal
import json
import os
import shutil
import tempfile

import datasets
import pandas
import pyarrow as pa
import pyarrow.parquet as pq

HERE = os.path.dirname(os.path.abspath(__file__))


def path(name):
    return os.path.join(HERE, name)


def write_lines(name, rows):
    with open(path(name), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_ipc(name, table, kind, **options):
    with pa.OSFile(path(name), "wb") as file:
        with kind(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=3)


def types():
    """Every type with a form in JSON, with nulls; also values at the ends of their ranges."""
    n = 7

    def column(values, kind):
        return pa.array((values * n)[:n], kind)

    columns = {
        "z_first": column([1, None, -9223372036854775808, 9223372036854775807], pa.int64()),
        "a_second": column(["plain", None, 'qu"ote\\ \n\t\r\x01', "grüße 漢字 🎉", ""], pa.string()),
        "large": column(["x" * 40, None, "ß"], pa.large_string()),
        "dictionary": column(["red", "green", None, "red"], pa.string()).dictionary_encode(),
        "int8": column([-128, 127, None], pa.int8()),
        "uint8": column([255, 0], pa.uint8()),
        "int16": column([-32768, None], pa.int16()),
        "uint16": column([65535], pa.uint16()),
        "int32": column([-2147483648, 7], pa.int32()),
        "uint32": column([4294967295, None], pa.uint32()),
        "uint64": column([18446744073709551615, 0], pa.uint64()),
        "float": column([0.1, -0.0, None, 1.0, 3.4e38], pa.float32()),
        "double": column([0.1, 1e300, 5e-324, None, 2.0], pa.float64()),
        "bool": column([True, False, None], pa.bool_()),
        "null": pa.nulls(n),
        "strings": column([["a", None, "b"], [], None, ["c"]], pa.list_(pa.string())),
        "large_list": column([[1, 2], None, []], pa.large_list(pa.int32())),
        "fixed_list": column([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "struct": column([{"b": 1, "a": "x"}, None, {"b": None, "a": None}],
                         pa.struct([("b", pa.int32()), ("a", pa.string())])),
        "messages": column([[{"from": "human", "value": "q"}, {"from": "gpt", "value": None}], [], None],
                           pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        "deep": column([[[1], [], None], None, [[2, 3]]], pa.list_(pa.list_(pa.int64()))),
        "pairs": column([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int32())),
    }
    table = pa.table(columns)
    write_lines("types.jsonl", table.to_pylist())
    pq.write_table(table, path("types.parquet"), row_group_size=3, store_schema=True)
    write_ipc("types_file.arrow", table, pa.ipc.new_file)
    write_ipc("types_stream.arrow", table, pa.ipc.new_stream)
    write_ipc("types_zstd.arrow", table, pa.ipc.new_file, compression="zstd")
    write_ipc("types_lz4.arrow", table, pa.ipc.new_stream, compression="lz4")


def only_arrow():
    """Types whose JSON is Megalith's choice, so that it is written here by hand."""
    table = pa.table({
        "half": pa.array([1.5, None], pa.float16()),
        "nan": pa.array([float("nan"), float("inf")]),
        "view": pa.array(["short", "longer than twelve bytes"], pa.string_view()),
        "list_view": pa.array([[1, 2], []], pa.list_view(pa.int32())),
        "decimal": pa.array([decimal.Decimal("-1.50"), None], pa.decimal128(9, 2)),
        "day": pa.array([datetime.date(2024, 1, 31), None]),
        "moment": pa.array([datetime.datetime(2024, 1, 31, 10, 0, 0), None], pa.timestamp("s")),
        "bytes": pa.array([b"\xff\x00\x01", None], pa.binary()),
    })
    write_ipc("only_arrow.arrow", table, pa.ipc.new_file)
    write_lines("only_arrow.jsonl", [
        {"half": 1.5, "nan": None, "view": "short", "list_view": [1, 2], "decimal": -1.50, "day": "2024-01-31",
         "moment": "2024-01-31 10:00:00", "bytes": {"binary_bytes": 3}},
        {"half": None, "nan": None, "view": "longer than twelve bytes", "list_view": [], "decimal": None, "day": None,
         "moment": None, "bytes": None},
    ])
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    write_ipc("union.arrow", pa.table({"text": ["a", "b"], "either": union}), pa.ipc.new_file)


def codecs():
    table = pa.table({"text": [f"document {i} " + "word " * (i % 9) for i in range(40)]})
    write_lines("codec.jsonl", table.to_pylist())
    for codec in ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]:
        pq.write_table(table, path(f"codec_{codec}.parquet"), compression=codec, row_group_size=16,
                       data_page_version="2.0" if codec == "zstd" else "1.0")


def chats():
    """A dataset as people publish it: ShareGPT turns, through Hugging Face's own writers."""
    rows = []
    for i in range(60):
        turns = []
        for t in range(1 + i % 2):
            turns += [{"from": "human", "value": f"How much is {i} + {t}?"},
                      {"from": "gpt", "value": f"It is {i + t}." + "\nReally: \"yes\", ünïcode." * (i % 3)}]
        rows.append({"id": i, "conversations": turns, "system": None if i % 5 else "Be brief.", "score": i / 7})
    data = datasets.Dataset.from_list(rows)
    data.to_json(path("chats.jsonl"))
    data.to_parquet(path("chats.parquet"), batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        data.save_to_disk(folder)  # an IPC stream, like the files of the cache
        shutil.copyfile(os.path.join(folder, "data-00000-of-00001.arrow"), path("chats.arrow"))


def alpaca():
    rows = []
    for i in range(60):
        rows.append({"instruction": f"Say {i}" + [", please", "", ' "loudly"', "\non two lines"][i % 4],
                     "input": "" if i % 3 else f"input {i}", "output": f"{i}" * (1 + i % 3)})
    frame = pandas.DataFrame(rows)
    frame.to_csv(path("alpaca.csv"), index=False)
    frame.to_csv(path("alpaca.tsv"), index=False, sep="\t")
    frame.to_parquet(path("alpaca.parquet"))
    frame.to_json(path("alpaca.jsonl"), orient="records", lines=True, force_ascii=False)


def pairs():
    rows = [{"prompt": f"q{i}", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), path("pairs.parquet"))
    write_lines("pairs.jsonl", rows)


def ids():
    rows = []
    for i in range(40):
        tokens = [(i * 7 + t * 13) % 60 + 2 for t in range(6 + i % 5)]
        rows.append({"input_ids": tokens, "labels": tokens})
    data = datasets.Dataset.from_list(rows, features=datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int32")), "labels": datasets.List(datasets.Value("int64"))}))
    write_lines("ids.jsonl", rows)
    data.to_parquet(path("ids.parquet"), batch_size=7)
    write_ipc("ids.arrow", data.data.table, pa.ipc.new_stream)


def csv_cases():
    """Texts and the records that pandas makes of them when text stays text; null when it refuses."""
    texts = [
        "a,b\n1,x\n2,y\n", "a,b\n007,1e5\nNA,None\nnull,NaN\n", "a,b\r\n1,2\r\n\r\n3,4", "a,b\r1,2\r3,4\r",
        "\ufeffa,b\n1,2\n", '\ufeff"a",b\n1,2\n', 'a,b\n"x, y","say ""hi"""\n', 'a,b\n"two\nlines","\r\n"\n',
        'a,b\n"x"y,"x" \n', 'a,b\nx"y",z"\n', "a,b\n   \n1,2\n\n\n", "a\nx\n\t\ny\n", "a,b\n,\n1,\n,2\n", 'a\n""\nx\n',
        "a,b,c\n1\n1,2\n", ",b,\n1,2,3\n", "a b, c\n x , y \n", 'a,b\n1,\\"x\n', "a\n#x\n'y'\n", "\n\na\nx\n", "a,b\n",
        'a,b\n1,"cut', "a,b\n1,2\n1,2,3\n", "", "grüße,漢字\nä,🎉\n",
    ]
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for text in texts:
            name = os.path.join(folder, "case.csv")
            with open(name, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            try:
                frame = pandas.read_csv(name, dtype=str, keep_default_na=False, na_values=[""])
                records = [{k: None if pandas.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
            except (pandas.errors.ParserError, pandas.errors.EmptyDataError):
                records = None
            cases.append({"csv": text, "records": records})
    with open(path("csv_cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=False, indent=1)
        file.write("\n")


def images():
    """Images as the package datasets stores them: a list of structs (llava_1k_en and its like), and one struct."""
    def read(name):
        with open(os.path.join(HERE, "..", "media", name), "rb") as file:
            return file.read()

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    rows, lines = [], []
    for text, files in [("<image>What?", ["rgb16.png"]), ("<image> or <image>?", ["lossy.webp", "optimized.jpg"]),
                        ("No picture.", []), ("<image>Again.", ["rgb16.png"])]:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "This."}]
        # With bytes the path is a name alone; without, it is looked up.
        structs = [{"bytes": None if name == "optimized.jpg" else read(name), "path": name} for name in files]
        rows.append({"messages": messages, "images": structs})
        lines.append({"messages": messages, "images": files})
    rows[3]["images"][0]["path"] = None
    rows[2]["images"] = None
    table = pa.Table.from_pylist(rows, pa.schema([("messages", pa.list_(turn)), ("images", pa.list_(image))]))
    pq.write_table(table, path("images.parquet"), row_group_size=3)
    write_ipc("images.arrow", table, pa.ipc.new_stream)
    write_lines("images.jsonl", lines)
    one = [{"instruction": "<image>What?", "output": "This.", "picture": rows[0]["images"][0]},
           {"instruction": "No picture.", "output": "So?", "picture": None}]
    table = pa.Table.from_pylist(one, pa.schema([("instruction", pa.string()), ("output", pa.string()),
                                                 ("picture", image)]))
    pq.write_table(table, path("one_image.parquet"))


def sounds():
    """Sounds likewise, as Audio columns of datasets are stored without decoding: WAV, MP3 and FLAC."""
    def read(name):
        with open(os.path.join(HERE, "..", "media", "sounds", name), "rb") as file:
            return file.read()

    sound = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    rows, lines = [], []
    for text, files in [("<audio>What?", ["byte.wav"]), ("<audio> or <audio>?", ["mono.mp3", "stereo.flac"]),
                        ("No sound.", []), ("<audio>Again.", ["byte.wav"])]:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "This."}]
        # With bytes the path is a name alone; without, it is looked up.
        structs = [{"bytes": None if name == "stereo.flac" else read(name), "path": name} for name in files]
        rows.append({"messages": messages, "audios": structs})
        lines.append({"messages": messages, "audios": files})
    rows[3]["audios"][0]["path"] = None
    rows[2]["audios"] = None
    table = pa.Table.from_pylist(rows, pa.schema([("messages", pa.list_(turn)), ("audios", pa.list_(sound))]))
    pq.write_table(table, path("sounds.parquet"), row_group_size=3)
    write_ipc("sounds.arrow", table, pa.ipc.new_stream)
    write_lines("sounds.jsonl", lines)
    one = [{"instruction": "<audio>What?", "output": "This.", "sound": rows[0]["audios"][0]},
           {"instruction": "No sound.", "output": "So?", "sound": None}]
    table = pa.Table.from_pylist(one, pa.schema([("instruction", pa.string()), ("output", pa.string()),
                                                 ("sound", sound)]))
    pq.write_table(table, path("one_sound.parquet"))


types()
only_arrow()
codecs()
chats()
alpaca()
pairs()
ids()
images()
sounds()
csv_cases()
with open(path("versions.json"), "w") as file:
    json.dump({"pyarrow": pa.__version__, "pandas": pandas.__version__, "datasets": datasets.__version__}, file)
    file.write("\n")
