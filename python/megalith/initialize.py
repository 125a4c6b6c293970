"""initialize_megatron under the module name of mcore_adapter; see models.py."""

from .ranks import initialize_megatron, is_distribute_initialized, shutdown_megatron  # noqa: F401
