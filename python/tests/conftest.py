"""What the tests share: a tiny model, samples that count up, and a way to run a script on several ranks."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import pytest

# Before torch is imported: several threads on a busy machine mostly wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests run on the CPU, also on a machine with a GPU, which several ranks would have to share and which a forked process
# cannot use. test_cuda.py runs its scripts with ON_THE_GPU.
ON_THE_GPU = {"MEGALITH_TEST_GPU": "1", "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
if "MEGALITH_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "golden" / "hf" / "llama"


def refuse_missing_packages(report):
    """Turns the skip of a test whose package is missing into a failure, where all packages are said to be there."""
    if os.environ.get("MEGALITH_ALL_PACKAGES") and report.skipped and "could not import" in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"MEGALITH_ALL_PACKAGES is set, and a package is missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return refuse_missing_packages((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return refuse_missing_packages((yield))


@pytest.fixture
def model_folder():
    return str(MODEL)


def counting_samples(count=16, length=12):
    """Samples that a small model learns at once: eight ids that count up, from different places."""
    samples = []
    for i in range(count):
        ids = [5 + (i + k) % 8 for k in range(length)]
        samples.append({"input_ids": ids, "labels": [-100, *ids[1:]]})
    return samples


@pytest.fixture
def samples():
    return counting_samples()


def options(**more):
    """Options of a small run on the CPU whose result does not depend on anything else."""
    common = dict(
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        disable_shuffling=True,
        seed=7,
    )
    return {**common, **more}


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run_script(script, ranks=1, timeout=300, env=None):
    """Runs a Python script on so many ranks, and returns what each has written to stdout. Fails with the words of one that
    fails."""
    paths = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    variables = {**os.environ, "PYTHONPATH": paths, **(env or {})}
    script = "from conftest import *\n" + textwrap.dedent(script)
    port = free_port()
    processes = []
    for rank in range(ranks):
        place = {}
        if ranks > 1:
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", script],
                env={**variables, **place},
                cwd=os.getcwd(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    results = [process.communicate(timeout=timeout) for process in processes]
    for process, (out, err) in zip(processes, results):
        assert process.returncode == 0, err + out
    return [out for out, _ in results]


@pytest.fixture(autouse=True)
def separate_runs(tmp_path, monkeypatch):
    """Each test has a folder of its own to run in; the groups end after it, so that the next may have another layout."""
    monkeypatch.chdir(tmp_path)
    yield
    if "megalith.ranks" in sys.modules:
        sys.modules["megalith.ranks"].shutdown_megatron()
