"""The four kinds of errors: options or arguments, data, other ranks, bugs. The first two are also ValueErrors, the others
RuntimeErrors."""

from .core import _megalith

Error = _megalith.Error
ConfigError = _megalith.ConfigError
DataError = _megalith.DataError
CommError = _megalith.CommError
InternalError = _megalith.InternalError
