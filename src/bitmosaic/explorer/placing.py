"""Codes -> the map: a place in the plane for every picture, or for a sample of many; computed once, kept in the run.

t-SNE arranges some landmarks, which are codes that all differ; every other code goes where the landmarks nearest to it
are. Pictures of the same code are strewn around its place.
"""

from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree

from bitmosaic.codes import hamming_distances, unpack
from bitmosaic.explorer.kept import are_rows, keep, kept
from bitmosaic.images import Progress, quiet
from bitmosaic.run import Run
from bitmosaic.threads import row_ranges, single_threaded_blas

MOST_PLACES = 50_000
LANDMARKS = 3500
PERPLEXITY = 30
NEAREST = 10  # landmarks that say where a code goes
LARGEST = 65_535  # the longer side of the map
NAME = "map"


class Places(NamedTuple):
    """Where the pictures are on the map; its longer side reaches from 0 to LARGEST, the other one is centred."""

    rows: np.ndarray  # (m,) int64, ascending
    x: np.ndarray  # (m,) uint16
    y: np.ndarray  # (m,) uint16


def place(codes, seed: int = 0, progress: Progress = quiet) -> Places:
    """The map of packed codes (n, b): of all, or of MOST_PLACES of them, spread evenly."""
    rng = np.random.default_rng(seed)
    rows = _spread_rows(len(codes), rng)
    distinct, owners, copies = np.unique(codes[rows], axis=0, return_inverse=True, return_counts=True)
    chosen = np.sort(rng.permutation(len(distinct))[:LANDMARKS])
    progress("arranging landmarks", 0, len(distinct))
    landmarks = _arranged(distinct[chosen], seed)
    room = _room(landmarks)
    homes, middles = np.empty((len(distinct), 2)), np.empty(len(distinct), np.int64)
    for piece in row_ranges(len(distinct), 1000):
        progress("placing pictures", piece.start, len(distinct))
        homes[piece], middles[piece] = _homes(distinct[piece], distinct[chosen], landmarks, room, rng)
    homes[chosen], middles[chosen] = landmarks, np.arange(len(chosen))
    crowds = np.bincount(middles[owners], minlength=len(chosen))  # many pictures around one landmark need more room
    strewn = (0.5 * room * np.cbrt(crowds / crowds.mean()))[middles]
    strewn[chosen[copies[chosen] == 1]] = 0
    return Places(rows, *_quantised(homes[owners] + strewn[owners, None] * rng.normal(size=(len(rows), 2))))


def _spread_rows(n, rng):
    """All rows, or MOST_PLACES of them: one at random from each of as many equal ranges."""
    if n <= MOST_PLACES:
        return np.arange(n)
    edges = np.arange(MOST_PLACES + 1) * n // MOST_PLACES
    return rng.integers(edges[:-1], edges[1:])


def _arranged(codes, seed):
    """Codes that all differ (m, b) -> their places (m, 2) by t-SNE, begun from their two main directions."""
    from sklearn.manifold import TSNE

    if len(codes) < 4:  # too few to have neighbours among them
        return np.stack([np.arange(len(codes)), np.zeros(len(codes))], axis=1)
    signs = unpack(codes)
    signs -= signs.mean(0)
    with single_threaded_blas():
        u, values, _ = np.linalg.svd(signs, full_matrices=False)
        main = u[:, :50] * values[:50]
        begin = np.zeros((len(codes), 2), np.float32)
        begin[:, : main.shape[1]] = main[:, :2] * (1e-4 / main[:, 0].std())
        perplexity = min(PERPLEXITY, (len(codes) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init=begin, max_iter=500, angle=0.8, random_state=seed, n_jobs=1)
        return tsne.fit_transform(main).astype(np.float64)


def _room(landmarks):
    """How far each landmark is from the eighth nearest other: (m,)."""
    if len(landmarks) == 1:
        return np.ones(1)
    nearest, _ = KDTree(landmarks).query(landmarks, [min(9, len(landmarks))])  # itself is the first
    return np.asarray(nearest)[:, 0]


def _homes(codes, landmark_codes, landmarks, room, rng):
    """The places of codes (n, 2), and the landmarks that they are around, (n,).

    A place is a mean of the nearest landmarks around the one in their midst: others of them may lie in another part of
    the map, and nothing lies between. Weights are random in part: plain means would crowd around a few landmarks.
    """
    distances = hamming_distances(codes, landmark_codes).astype(np.int64)
    order = distances * len(landmark_codes) + np.arange(len(landmark_codes))  # ties: lowest landmark
    k = min(NEAREST, len(landmark_codes))
    bits, near = np.divmod(np.sort(np.partition(order, k - 1)[:, :k]), len(landmark_codes))
    weights = np.exp((bits[:, :1] - bits) / 3)  # (n, k)
    places = landmarks[near]  # (n, k, 2)
    apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=3)  # (n, k, k)
    middle = np.argmin((apart * weights[:, None]).sum(2), axis=1)
    each = np.arange(len(codes))
    around = near[each, middle]
    weights /= (1 + (apart[each, middle] / (2 * room[around, None])) ** 2) ** 2
    weights *= rng.exponential(size=weights.shape)
    return np.einsum("nk,nkd->nd", weights, places) / weights.sum(1, keepdims=True), around


def _quantised(places):
    """Places (m, 2) -> x and y, uint16, of the same proportions."""
    low, high = places.min(0), places.max(0)
    scale = LARGEST / (np.max(high - low) or 1.0)
    return np.rint(LARGEST / 2 + (places - (low + high) / 2) * scale).clip(0, LARGEST).astype(np.uint16).T


# ---- kept in the run


def stored_places(run: Run) -> Places | None:
    """The map that was stored in the run, if it is whole and one of its codes."""
    arrays = kept(run, NAME, Places._fields)
    if arrays is None or [(array.dtype, array.shape) for array in arrays] != [
        (dtype, arrays[0].shape[:1]) for dtype in (np.int64, np.uint16, np.uint16)
    ]:
        return None
    places = Places(*arrays)
    return places if are_rows(places.rows, run) else None


def store_places(run: Run, places: Places) -> None:
    keep(run, NAME, **places._asdict())
