"""Text of any length in an HDF5 file -> strings, read by another process.

HDF5 keeps such texts in a heap, and each row says where its text begins. A damaged heap is one that HDF5 (2.0) never
comes back from, and rows beyond number may share a long text, of which HDF5 makes a copy each. So another process
reads them, some rows at a time, with a limit of time and memory; here come the different texts and a number for each
row, as much as the file can hold.
"""

import os
import subprocess
import sys
from typing import Any

import numpy as np

from bitmosaic.errors import FileFormatError
from bitmosaic.threads import machine_memory

_BLOCK_BYTES = 2**28  # that some rows take at most, unless the file is large
_FEWEST_ROWS, _MOST_ROWS = 16, 4096  # that are read at once
_WAITING = 10  # times the seconds of a core that it may take: other work may leave it less than one

_READ = """
import sys
import h5py, numpy as np
path, name = sys.argv[1:3]
step, allowance, seconds = map(int, sys.argv[3:])
try:
    import resource
    for what, most in ((resource.RLIMIT_DATA, allowance), (resource.RLIMIT_CPU, seconds)):
        least = min(limit for limit in (most, *resource.getrlimit(what)) if limit >= 0)
        resource.setrlimit(what, (least, least))
except ImportError:  # not on Windows
    pass
number = {}
dataset = h5py.File(path, "r")[name]
rows = []
for start in range(0, len(dataset), step):
    block = np.ravel(dataset[start : start + step]).tolist()
    rows += [number.setdefault(bytes(text), len(number)) for text in block]
out = sys.stdout.buffer
out.write(np.array([len(number), *map(len, number), *rows], "<i8").tobytes())
out.writelines(number)
"""


def read_texts(dataset: Any) -> np.ndarray:
    """All values of a dataset of texts, as an array of objects in which equal ones are the same."""
    place = os.path.abspath(dataset.file.filename)
    try:
        return _read(place, dataset)
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise FileFormatError(
            f"{place}: the text in {dataset.name} cannot be read. The file may be damaged: copy it."
        ) from error


def _read(place: str, dataset: Any) -> np.ndarray:
    file_bytes = os.path.getsize(place)
    step = min(max(_BLOCK_BYTES // file_bytes, _FEWEST_ROWS), _MOST_ROWS)
    # -P: nothing is imported from the current folder, which may be where the file came from.
    seconds = 5 + dataset.size // 10**5 + file_bytes // 10**8
    limits = [str(limit) for limit in (step, machine_memory() // 2, seconds)]
    command = [sys.executable, "-P", "-c", _READ, place, dataset.name, *limits]
    content = subprocess.run(command, capture_output=True, timeout=_WAITING * seconds, check=True).stdout
    n_texts = int(np.frombuffer(content, "<i8", 1)[0])
    lengths = np.frombuffer(content, "<i8", n_texts, 8)
    numbers = np.frombuffer(content, "<i8", dataset.size, 8 * (1 + n_texts))
    ends = 8 * (1 + n_texts + dataset.size) + np.cumsum(lengths)
    texts = [content[end - length : end].decode() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return np.array([*texts, None], object)[numbers].reshape(dataset.shape)  # never an array of strings
