"""For tests of programs that use megalith: several ranks in one process."""

import threading

import torch

from . import ranks
from .core import _megalith
from .errors import CommError


def run_ranks(size, fn, *args, timeout=60):
    """Calls fn(*args) on so many ranks that are threads of this process, and returns their results, in the order of the ranks.

        losses = run_ranks(4, train, "tiny-model")  # TrainingArguments(tensor_model_parallel_size=2, use_cpu=True, …)

    In the function, everything that megalith does is done by one rank: megalith.rank() tells which. Ranks are on the CPU and
    compute with one thread each. Operations between them have a limit of `timeout` seconds. If a rank fails, the others are told,
    and its error is raised here, with a note that names the rank. A Python callback that waits for another rank while it holds the
    interpreter's lock waits forever; the library itself releases it.
    """
    places = _megalith.Rank.of_threads(size, timeout)
    results = [None] * size
    failures = []  # (rank, error), in the order in which they happened

    def work(number):
        torch.set_num_threads(1)  # in each thread, because OpenMP counts per thread
        place = ranks._thread.rank = places[number]
        try:
            results[number] = fn(*args)
            place.shutdown()
        except BaseException as error:
            failures.append((number, error))
            place.report_failure(f"{type(error).__name__}: {error}")
            place.abandon()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        workers = [threading.Thread(target=work, args=(number,), name=f"rank {number}") for number in range(size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        torch.set_num_threads(threads)
    if failures:
        _raise_first(failures)
    return results


def _raise_first(failures):
    """Raises the cause: what is not the echo of another rank's failure."""
    number, error = next((each for each in failures if not isinstance(each[1], CommError)), failures[0])
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"on rank {number} of megalith.testing.run_ranks")
    raise error
