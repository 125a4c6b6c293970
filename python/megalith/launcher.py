"""Starts the ranks of a run as processes on this machine: from a script, and from a notebook, which has no torchrun."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import threading
import time
import traceback

from . import ranks
from .errors import CommError, ConfigError

_GRACE_SECONDS = 20  # for ranks that have been told that another one has failed


def launch(fn, args=(), nproc=1, start_method="fork"):
    """Calls fn(*args) in `nproc` processes, each of which is a rank, and returns their results, in the order of the ranks.

        def train(path):
            args = TrainingArguments(output_dir="out", tensor_model_parallel_size=2)
            trainer = Trainer(path, args, train_dataset=samples)  # samples: a variable of the notebook
            return trainer.train().training_loss

        losses = megalith.launch(train, ("my-model",), nproc=2)

    With "fork", the function may be anything, defined in a cell as well, and sees the variables of this process; it changes
    copies of them. "spawn" starts fresh processes, which is needed where this one has used CUDA already: the function and its
    arguments then have to be importable (not from a notebook), and a script guards its own start with `if __name__ == "__main__":`.

    Results come back by pickle. If a rank fails, the others are told, and its error is raised here. Ctrl-C ends runs after their
    step, with a checkpoint; a second one ends the processes.
    """
    if nproc < 1:
        raise ConfigError(f"nproc is {nproc}; give at least 1")
    if ranks.is_distribute_initialized():
        raise ConfigError("this process is a rank already; call launch before it, or shutdown_megatron() first")
    if start_method == "fork":
        import torch

        if torch.cuda.is_initialized():
            raise ConfigError(
                "this process has used CUDA, which a fork of it cannot use; call launch before anything touches a GPU,"
                ' or pass start_method="spawn"'
            )
    context = multiprocessing.get_context(start_method)
    port = _free_port()
    processes, results = [], []
    for number in range(nproc):
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, "MASTER_PORT": port}
        place = {"MASTER_ADDR": "localhost", **{name: str(value) for name, value in place.items()}}
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_be_rank, args=(fn, args, place, send), name=f"rank {number}")
        process.start()
        send.close()
        processes.append(process)
        results.append(receive)
    return _Watch(processes, results).wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


class RankTraceback(Exception):
    """Where a rank failed: the cause of the error that launch raises."""

    def __str__(self):
        return "\n" + self.args[0]


class _Watch:
    """Waits for the processes of a run, and ends them together."""

    def __init__(self, processes, connections):
        self._processes = processes
        self._open = dict(zip(connections, range(len(processes))))
        self._results = [None] * len(processes)
        self._failures = []  # (rank, error), in the order in which they happened
        self._deadline = None

    def wait(self):
        try:
            self._collect()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        finally:
            for process in self._processes:
                process.join()
        if self._failures:
            raise self._cause()
        return self._results

    def _collect(self):
        while self._open:
            limit = None if self._deadline is None else max(0, self._deadline - time.monotonic())
            ready = multiprocessing.connection.wait(list(self._open), limit)
            for connection in ready:
                self._take(connection, self._open.pop(connection))
            if self._failures and self._deadline is None:
                self._deadline = time.monotonic() + _GRACE_SECONDS
            if not ready:
                self._signal(signal.SIGKILL)
                return

    def _take(self, connection, number):
        try:
            succeeded, value, trace = connection.recv()
        except EOFError:
            self._processes[number].join()
            code = self._processes[number].exitcode
            end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            succeeded, value, trace = False, CommError(f"rank {number} {end} and has returned nothing"), None
        if succeeded:
            self._results[number] = value
            return
        if trace:
            value.__cause__ = RankTraceback(trace)
        self._failures.append((number, value))

    def _cause(self):
        # The echo of another rank's failure is not the cause.
        number, error = next((each for each in self._failures if not isinstance(each[1], CommError)), self._failures[0])
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"on rank {number} of megalith.launch")
        return error

    def _signal(self, number):
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, number)

    def _interrupt(self):
        """Lets the ranks end in order, unless they are interrupted once more."""
        self._signal(signal.SIGINT)
        try:
            for process in self._processes:
                process.join()
        except KeyboardInterrupt:
            self._signal(signal.SIGKILL)


def _be_rank(fn, args, place, connection):
    """The main function of a rank's process."""
    # Ctrl-C at a terminal would reach every process of the group; the first one passes it on, once.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(place)
    # A thread of its own: OpenMP's threads did not survive the fork, and a new thread gets new ones.
    work = threading.Thread(target=_work, args=(fn, args, connection), daemon=True)
    work.start()
    parent = multiprocessing.parent_process().sentinel
    while work.is_alive():
        if multiprocessing.connection.wait([parent], 0.1):
            os._exit(1)  # nobody waits for this rank any more


def _work(fn, args, connection):
    ranks._thread.handles_signals = True
    try:
        result = (True, fn(*args), None)
        ranks.shutdown_megatron()
    except BaseException as error:
        if not getattr(error, "ends_in_order", False):
            ranks.current().report_failure(f"{type(error).__name__}: {error}")
        else:
            ranks.shutdown_megatron()
        result = (False, error, traceback.format_exc())
    connection.send_bytes(_pickled(*result))
    connection.close()


def _pickled(succeeded, value, trace):
    try:
        data = pickle.dumps((succeeded, value, trace))
        pickle.loads(data)  # errors with arguments of their own may be written, but not read
        return data
    except Exception as problem:
        if succeeded:
            value, trace = TypeError(f"the result of a rank cannot be sent to the process that launched it: {problem}"), None
        else:
            value = RuntimeError(f"{type(value).__name__}: {value}")
        return pickle.dumps((False, value, trace))
