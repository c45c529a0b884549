"""HDF5 files: their items, and small datasets that are read into memory."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.io.read import refuse_larger_than_memory
from bitmosaic.views.views import is_dataset


def items_inside(group: Any) -> Iterator[tuple[str, Any]]:
    """The items of a group by name. Broken links are skipped."""
    for name in group:
        item = group.get(name)
        if item is not None:
            yield name, checked(item)


def checked(item: Any) -> Any:
    """The item unchanged. The chunks of a dataset must fit into memory, because HDF5 reads them whole."""
    if is_dataset(item) and item.chunks:
        refuse_larger_than_memory(item.file.filename, math.prod(item.chunks) * item.dtype.itemsize)
    return item


def read_whole(dataset: Any) -> np.ndarray:
    """All values of a small dataset, such as labels. Text of variable length becomes an array of str objects."""
    import h5py

    refuse_larger_than_memory(dataset.file.filename, math.prod(dataset.shape) * dataset.dtype.itemsize)
    text = h5py.check_string_dtype(dataset.dtype)
    return np.asarray(dataset.asstr()[()] if text is not None and text.length is None else dataset[()])


def open_h5(path: Any) -> Any:
    """Open a file for reading."""
    import h5py

    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} is not a whole HDF5 file ({error}). "
            "It may be truncated or of another format. Copy or write it again."
        ) from error
