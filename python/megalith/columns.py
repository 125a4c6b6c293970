"""Datasets of Hugging Face, whose Arrow columns the library can read where they lie: without copies, without the interpreter."""

from .core import _megalith

_KEYS = ("input_ids", "labels", "attention_mask")


def columns_of(dataset, name):
    """Returns the columns of a datasets.Dataset that has token ids and nothing else to offer, for the library to read; otherwise the
    dataset itself.

    Nothing else: no format, transform or further column of numbers, which would be an extra tensor for the loss.
    """
    if type(dataset).__module__.partition(".")[0] != "datasets" or not hasattr(dataset, "data"):
        return dataset
    names = dataset.column_names
    if dataset.format["type"] is not None or "input_ids" not in names or not set(names) <= set(_KEYS):
        return dataset
    import pyarrow

    table = dataset.data.table if hasattr(dataset.data, "table") else dataset.data
    found = [_chunks(table.column(key)) if key in names else None for key in _KEYS]
    if any(key is not None and column is None for key, column in zip([n if n in names else None for n in _KEYS], found)):
        return dataset
    ids, labels, mask = found
    # Rows of a table begin and end together in all columns, or they are not read chunk by chunk.
    lengths = [len(chunk) for chunk in ids]
    if any(other is not None and [len(chunk) for chunk in other] != lengths for other in (labels, mask)):
        return dataset
    chunks = [
        (_tensors(ids[i]), labels and _tensors(labels[i]), mask and _tensors(mask[i])) for i in range(len(ids)) if lengths[i]
    ]
    order = None
    if dataset._indices is not None:  # select, shuffle, filter
        rows = dataset._indices.column(0)
        order = _tensor(pyarrow.concat_arrays(rows.chunks) if rows.num_chunks != 1 else rows.chunk(0)).long()
    return _megalith.ColumnDataset(chunks, order, name)


def _chunks(column):
    """Returns the chunks of a column of lists of whole numbers; None for another column, or one with holes."""
    import pyarrow.types as types

    kind = column.type
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_signed_integer(kind.value_type):
        return None
    if column.null_count or any(chunk.values.null_count for chunk in column.chunks):
        return None
    return column.chunks


def _tensors(chunk):
    """Returns values and offsets of a chunk; offsets of a slice are those of its rows."""
    return _tensor(chunk.values), _tensor(chunk.offsets)


def _tensor(array):
    """Returns a tensor that shares the memory of an array, which is only read."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.to_numpy(zero_copy_only=True))
