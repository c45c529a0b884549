"""Hashes of decoded images: content hashes find equal images, perceptual hashes find resized or recompressed ones."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from PIL import Image

from bitmosaic.io.threads import available_threads, in_order, row_ranges

CONTENT_HASH_BYTES = 16  # among a hundred million images, two different ones collide with probability 1e-23
PIECE = 32  # images per task of a thread


def content_hashes(images: Sequence[np.ndarray], n_threads: int | None = None) -> np.ndarray:
    """(n, 16) uint8 from the shapes and pixels of images as extractors get them."""
    pieces = row_ranges(len(images), PIECE)
    found = in_order(lambda piece: [_hash(image) for image in images[piece]], pieces, available_threads(n_threads))
    return np.frombuffer(b"".join(chain.from_iterable(found)), np.uint8).reshape(-1, CONTENT_HASH_BYTES)


def _hash(image: np.ndarray) -> bytes:
    key = repr(image.shape).encode()
    return hashlib.blake2b(np.ascontiguousarray(image), digest_size=CONTENT_HASH_BYTES, key=key).digest()


class KnownImages:
    """A set of known content hashes that grows as new images are added."""

    def __init__(self, parts: Iterable[tuple[int, np.ndarray]], path_of: Callable[[int], str]):
        """`parts`: (first row, content hashes) pairs; `path_of`: row -> path."""
        parts = list(parts)
        empty = np.empty((0, CONTENT_HASH_BYTES), np.uint8)
        self._hashes = np.concatenate([empty, *(hashes for _, hashes in parts)])
        self._rows = np.concatenate([np.empty(0, np.int64), *(start + np.arange(len(h)) for start, h in parts)])
        keys = _keys(self._hashes)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        self._path_of = path_of
        self._new: dict[bytes, str] = {}

    def sort_out(self, hashes: np.ndarray, paths: Sequence[str]) -> tuple[np.ndarray, list[tuple[str, str]]]:
        """Positions of the new images, (k,) int64, and a pair (path, path of the equal known image) for each other one.

        The new images are added to the known ones.
        """
        new, known = [], []
        first, past = (np.searchsorted(self._sorted, _keys(hashes), side) for side in ("left", "right"))
        for i, path in enumerate(paths):
            same = self._new.get(content_hash := hashes[i].tobytes())
            for place in self._order[first[i] : past[i]]:
                if same is None and self._hashes[place].tobytes() == content_hash:
                    same = self._path_of(int(self._rows[place]))
            if same is None:
                new.append(i)
                self._new[content_hash] = path
            else:
                known.append((path, same))
        return np.array(new, np.int64), known


def _keys(hashes: np.ndarray) -> np.ndarray:
    """The first half of each hash as an integer, (n,): it narrows the search to a few candidates."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64)[:, 0]


# The perceptual hash: the gray image is resized to 32 × 32 pixels, and its bits are the signs of the 128 lowest
# frequencies of the discrete cosine transform, without the mean. Scaling keeps these coarse shapes, and compression
# hardly changes them. Between unrelated images about half the bits differ.
SIDE, BITS = 32, 128
DECODED_SIDE = 64  # pixels per side at which an image needs to be decoded
FAINT = 4.0  # coefficients up to this are noise from rounding and compression: their bit is 0
FLAT = 2.0  # an image with a standard deviation up to this, in gray levels, counts as one flat color
LEVELS_PER_BIT = 6  # of the color of a flat image


def _waves():
    """The first 16 of 32 orthonormal cosine waves, (16, 32), and the pairs of them that are used, lowest first."""
    order, pixel = np.arange(16), np.arange(SIDE)
    waves = np.cos(np.pi / SIDE * order[:, None] * (pixel + 0.5)) * np.sqrt(2 / SIDE)
    waves[0] /= np.sqrt(2)
    down, across = np.divmod(np.arange(256), 16)
    chosen = np.lexsort((down, abs(down - across), down + across))[1 : BITS + 1]
    return waves, chosen


_WAVES, _CHOSEN = _waves()


def perceptual_hash(image: np.ndarray) -> np.ndarray:
    """RGB uint8 (h, w, 3) -> (16,) uint8, bits packed as in codes.

    The hash of a flat image is its mean color, one bit per six levels of red, green and blue, so that similar colors
    differ in few bits.
    """
    small = Image.fromarray(image)
    if max(small.size) > DECODED_SIDE:
        small = small.resize((DECODED_SIDE, DECODED_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    gray = np.asarray(small.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    if gray.std() <= FLAT:
        levels = np.asarray(small).reshape(-1, 3).mean(0)
        bits = levels[:, None] >= LEVELS_PER_BIT * np.arange(1, 43)  # (3, 42)
        return np.packbits(np.pad(bits.ravel(), (0, BITS - bits.size)))
    strengths = _WAVES @ gray @ _WAVES.T
    return np.packbits(strengths.ravel()[_CHOSEN] > FAINT)
