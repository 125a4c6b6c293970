"""The place of this process among the ranks of a run. The launcher's variables (torchrun's, srun's, mpirun's) say which rank it
is; a process that was started without a launcher is the only one."""

import atexit
import sys

from .core import _megalith


def initialize_megatron(args):
    """Joins the other ranks, makes the groups and sets every seed. Later calls only set the seeds again.

    AutoModel.from_pretrained calls it; a program that only wants the groups may call it itself.
    """
    _megalith.initialize(args._parsed)


def is_distribute_initialized():
    """Returns whether the groups exist."""
    return _megalith.is_initialized()


def shutdown_megatron():
    """Closes trainers and models, waits for the other ranks and leaves; all ranks call it.

    It is called at the end of a program that ends without an error. After it, a run in another layout may begin.
    """
    _megalith.shutdown()


def quiet(quiet=True):
    """Leaves only warnings and errors on stderr, or shows everything again."""
    _megalith.quiet(quiet)


def _leave():
    # A rank that has failed must not wait for the others; they have been told.
    failed = hasattr(sys, "last_value") and not getattr(sys.last_value, "ends_in_order", False)
    if not failed and _megalith.is_initialized():
        _megalith.shutdown()


def _tell_others(kind, error, trace, previous=sys.excepthook):
    if not getattr(error, "ends_in_order", False) and _megalith.is_initialized():
        _megalith.report_failure(f"{kind.__name__}: {error}")
    previous(kind, error, trace)


atexit.register(_leave)
sys.excepthook = _tell_others
