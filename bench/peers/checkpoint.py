"""The peer of checkpoint_bench: the same tensors through safetensors and torch.distributed.checkpoint.

  checkpoint.py FOLDER TENSORS ROWS COLUMNS

One command a line on stdin; every save is on the disk when it is answered:

  save safetensors | save dcp  -> {"seconds"}
  load safetensors | load dcp  -> {"seconds"}: into tensors that are there
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file

torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
folder, count, rows, columns = sys.argv[1], *map(int, sys.argv[2:5])
state = {f"tensor.{i}": torch.full((rows, columns), float(i)) for i in range(count)}
into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
plain, sharded = os.path.join(folder, "peer.safetensors"), os.path.join(folder, "dcp")


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save(kind):
    if kind == "dcp":
        shutil.rmtree(sharded, ignore_errors=True)
        start = time.perf_counter()
        dcp.save(state, storage_writer=dcp.FileSystemWriter(sharded, thread_count=2, sync_files=True), no_dist=True)
        sync(sharded)
    else:
        if os.path.exists(plain):
            os.remove(plain)
        start = time.perf_counter()
        save_file(state, plain)
        sync(plain)
        sync(folder)
    return time.perf_counter() - start


def load(kind):
    start = time.perf_counter()
    if kind == "dcp":
        dcp.load(into, storage_reader=dcp.FileSystemReader(sharded), no_dist=True)
    else:
        with safe_open(plain, framework="pt") as file:
            for name, tensor in into.items():
                tensor.copy_(file.get_tensor(name))
    seconds = time.perf_counter() - start
    for i, tensor in enumerate(into.values()):
        assert tensor[-1, -1] == float(i) and tensor[0, 0] == float(i)
        tensor.zero_()
    return seconds


for line in sys.stdin:
    what, kind = line.split()
    print(json.dumps({"seconds": (save if what == "save" else load)(kind)}), flush=True)
