"""Decoded pictures -> 16 bytes that are the same for the same content, and which of them are known already."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from bitmosaic.threads import available_threads, in_order, row_ranges
from bitmosaic.views.folder import DIGEST_BYTES as SIZE

PIECE = 32  # pictures of a task


def digests_of(images: Sequence[np.ndarray], n_threads: int | None = None) -> np.ndarray:
    """(n, 16) uint8 of the shapes and pixels of pictures, as extractors get them."""
    pieces = row_ranges(len(images), PIECE)
    found = in_order(lambda piece: [_digest(image) for image in images[piece]], pieces, available_threads(n_threads))
    return np.frombuffer(b"".join(chain.from_iterable(found)), np.uint8).reshape(-1, SIZE)


def _digest(image: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image), digest_size=SIZE, key=repr(image.shape).encode()).digest()


class KnownPictures:
    """The pictures that are there already, by digest, and those that join them. Nothing but digests is looked at."""

    def __init__(self, parts: Iterable[tuple[int, np.ndarray]], path_of: Callable[[int], str]):
        """`parts` are digests with the row of the first of them; `path_of` a row is what it is called."""
        parts = list(parts)
        self._digests = np.concatenate([np.empty((0, SIZE), np.uint8), *(digests for _, digests in parts)])
        self._rows = np.concatenate([np.empty(0, np.int64), *(start + np.arange(len(d)) for start, d in parts)])
        keys = _keys(self._digests)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        self._path_of = path_of
        self._new: dict[bytes, str] = {}

    def sort_out(self, digests: np.ndarray, paths: Sequence[str]) -> tuple[np.ndarray, list[tuple[str, str]]]:
        """Which pictures are new, in order, (k,) int64; the others with the path of the one that each is the same as.

        The new ones are known from now on.
        """
        new, known = [], []
        first, past = (np.searchsorted(self._sorted, _keys(digests), side) for side in ("left", "right"))
        for i, path in enumerate(paths):
            same = self._new.get(digest := digests[i].tobytes())
            for place in self._order[first[i] : past[i]]:
                if same is None and self._digests[place].tobytes() == digest:
                    same = self._path_of(int(self._rows[place]))
            if same is None:
                new.append(i)
                self._new[digest] = path
            else:
                known.append((path, same))
        return np.array(new, np.int64), known


def _keys(digests: np.ndarray) -> np.ndarray:
    """Half of each digest as a number, (n,): enough to find the few that may be the same."""
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0]
