"""Codes -> a 2-D map with a point per image (a sample above MAX_POINTS images), computed once and stored in the run.

t-SNE places the landmarks, a sample of the distinct codes. Every other code is placed by its nearest landmarks. Images
with the same code are scattered around one point.
"""

from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree

from bitmosaic.hamming.codes import hamming_distances, unpack
from bitmosaic.images import Progress, quiet
from bitmosaic.io.threads import row_ranges, single_threaded_blas
from bitmosaic.run.folder import Run

MAX_POINTS = 50_000
LANDMARKS = 3500
PERPLEXITY = 30
NEAREST = 10  # landmarks that place a code
MAX_COORDINATE = 65_535  # length of the longer side of the map
NAME = "map"


class MapPoints(NamedTuple):
    """Positions of images on the map. The longer side spans 0 to MAX_COORDINATE, the other one is centered."""

    rows: np.ndarray  # (m,) int64, ascending
    x: np.ndarray  # (m,) uint16
    y: np.ndarray  # (m,) uint16


def make_map(codes, seed: int = 0, progress: Progress = quiet) -> MapPoints:
    """The map of packed codes (n, b): of all, or of MAX_POINTS of them, spread evenly."""
    rng = np.random.default_rng(seed)
    rows = _spread_rows(len(codes), rng)
    distinct, owners, copies = np.unique(codes[rows], axis=0, return_inverse=True, return_counts=True)
    chosen = np.sort(rng.permutation(len(distinct))[:LANDMARKS])
    progress("computing the map", 0, len(distinct))
    landmarks = _embed(distinct[chosen], seed)
    spacing = _spacing(landmarks)
    points, anchors = np.empty((len(distinct), 2)), np.empty(len(distinct), np.int64)
    for piece in row_ranges(len(distinct), 1000):
        progress("placing images", piece.start, len(distinct))
        points[piece], anchors[piece] = _interpolate(distinct[piece], distinct[chosen], landmarks, spacing, rng)
    points[chosen], anchors[chosen] = landmarks, np.arange(len(chosen))
    density = np.bincount(anchors[owners], minlength=len(chosen))  # many images around a landmark are scattered wider
    scatter = (0.5 * spacing * np.cbrt(density / density.mean()))[anchors]
    scatter[chosen[copies[chosen] == 1]] = 0
    return MapPoints(rows, *_quantized(points[owners] + scatter[owners, None] * rng.normal(size=(len(rows), 2))))


def _spread_rows(n, rng):
    """All rows, or MAX_POINTS of them: a random one from each of MAX_POINTS equal ranges."""
    if n <= MAX_POINTS:
        return np.arange(n)
    edges = np.arange(MAX_POINTS + 1) * n // MAX_POINTS
    return rng.integers(edges[:-1], edges[1:])


def _embed(codes, seed):
    """Distinct codes (m, b) -> points (m, 2) by t-SNE, initialized with the first two principal components."""
    from sklearn.manifold import TSNE

    if len(codes) < 4:  # too few for t-SNE
        return np.stack([np.arange(len(codes)), np.zeros(len(codes))], axis=1)
    signs = unpack(codes)
    signs -= signs.mean(0)
    with single_threaded_blas():
        u, values, _ = np.linalg.svd(signs, full_matrices=False)
        main = u[:, :50] * values[:50]
        initial = np.zeros((len(codes), 2), np.float32)
        initial[:, : main.shape[1]] = main[:, :2] * (1e-4 / main[:, 0].std())
        perplexity = min(PERPLEXITY, (len(codes) - 1) / 3)
        tsne = TSNE(perplexity=perplexity, init=initial, max_iter=500, angle=0.8, random_state=seed, n_jobs=1)
        return tsne.fit_transform(main).astype(np.float64)


def _spacing(landmarks):
    """Distance from each landmark to its eighth nearest neighbor, (m,)."""
    if len(landmarks) == 1:
        return np.ones(1)
    nearest, _ = KDTree(landmarks).query(landmarks, [min(9, len(landmarks))])  # the first is the landmark itself
    return np.asarray(nearest)[:, 0]


def _interpolate(codes, landmark_codes, landmarks, spacing, rng):
    """Points of codes (n, 2), and the anchor landmark of each, (n,).

    The anchor is the medoid of the nearest landmarks. A point is their weighted mean; landmarks far from the anchor
    weigh little, since they may lie in another part of the map. Weights are partly random: plain means would gather
    near a few landmarks.
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
    anchors = near[each, middle]
    weights /= (1 + (apart[each, middle] / (2 * spacing[anchors, None])) ** 2) ** 2
    weights *= rng.exponential(size=weights.shape)
    return np.einsum("nk,nkd->nd", weights, places) / weights.sum(1, keepdims=True), anchors


def _quantized(places):
    """Points (m, 2) -> x and y as uint16, aspect ratio kept."""
    low, high = places.min(0), places.max(0)
    scale = MAX_COORDINATE / (np.max(high - low) or 1.0)
    return np.rint(MAX_COORDINATE / 2 + (places - (low + high) / 2) * scale).clip(0, MAX_COORDINATE).astype(np.uint16).T


# ---- storage in the run folder


def stored_map(run: Run) -> MapPoints | None:
    """The map stored in the run, if it is complete and was made from these codes."""
    arrays = run.load_cached(NAME, MapPoints._fields)
    return None if arrays is None else MapPoints(*arrays)


def store_map(run: Run, points: MapPoints) -> None:
    run.store_cached(NAME, **points._asdict())
