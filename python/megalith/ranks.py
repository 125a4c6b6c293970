"""The place of this process among the ranks of a run. The launcher's variables (torchrun's, srun's, mpirun's, megalith.launch's)
say which rank it is; a process that was started without a launcher is the only one."""

import atexit
import sys
import threading

from .core import _megalith

_process = _megalith.Rank.of_process()
_thread = threading.local()  # .rank is set on threads that are ranks (megalith.testing)


def current():
    """Returns the rank of this thread: its own, or that of the process."""
    return getattr(_thread, "rank", _process)


def handles_signals():
    """Returns whether a run on this thread may stop at Ctrl-C: on the main thread, and in the processes of megalith.launch."""
    return threading.current_thread() is threading.main_thread() or getattr(_thread, "handles_signals", False)


def rank():
    """Returns the number of this rank, from 0."""
    return current().place()[0]


def world_size():
    """Returns the number of ranks."""
    return current().place()[1]


def initialize_megatron(args):
    """Joins the other ranks, makes the groups and sets every seed. Later calls only set the seeds again.

    AutoModel.from_pretrained calls it; a program that only wants the groups may call it itself.
    """
    current().initialize(args._parsed)


def is_distribute_initialized():
    """Returns whether the groups exist."""
    return current().is_initialized


def shutdown_megatron():
    """Closes trainers and models, waits for the other ranks and leaves; all ranks call it.

    It is called at the end of a program that ends without an error. After it, a run in another layout may begin.
    """
    current().shutdown()


def quiet(quiet=True):
    """Leaves only warnings and errors on stderr, or shows everything again."""
    _megalith.quiet(quiet)


def log_to(logger=None):
    """Sends what the library would write on stderr to a logger of Python's logging: log_to(logging.getLogger("megalith")).

    Lines keep their levels; progress and summaries are infos. None brings stderr back. The logger is called on the thread that has
    something to say, and the files in output_dir/log are written as before.
    """
    if logger is None:
        return _megalith.log_to(None)
    import logging

    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if isinstance(logger, str):
        logger = logging.getLogger(logger)
    _megalith.log_to(lambda level, line: logger.log(levels[level], "%s", line))


def _leave():
    # A rank that has failed must not wait for the others; they have been told. Loggers may be gone.
    _megalith.log_to(None)
    failed = hasattr(sys, "last_value") and not getattr(sys.last_value, "ends_in_order", False)
    if not failed and _process.is_initialized:
        _process.shutdown()


def _tell_others(kind, error, trace, previous=sys.excepthook):
    if not getattr(error, "ends_in_order", False) and _process.is_initialized:
        _process.report_failure(f"{kind.__name__}: {error}")
    previous(kind, error, trace)


atexit.register(_leave)
sys.excepthook = _tell_others
