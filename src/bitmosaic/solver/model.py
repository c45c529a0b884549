"""A fitted model: everything that turns rows of views into codes and clusters."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.hamming.codes import hamming_distances, nearest_centers
from bitmosaic.io.threads import row_ranges, single_threaded_blas
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.clustering import plain_if_equal
from bitmosaic.solver.embedding import Embedding
from bitmosaic.solver.loop import encode

_EMBEDDING_ARRAYS = ("offset", "factor", "anchors", "mean")


@dataclass(frozen=True)
class Model:
    embeddings: list[Embedding]
    projections: list[np.ndarray]  # (l, K) float32 for each view
    weights: np.ndarray  # (m,) w_v
    centers: np.ndarray  # (c, K/8) uint8
    bit_weights: np.ndarray  # (K,)

    @property
    def widths(self):
        return [len(e.offset) for e in self.embeddings]

    def encode(self, views, numbers, chunk_size=None, n_threads=1, rows=None):
        """Packed codes of all (or some sorted) rows of `views`, which are the fitted views with these `numbers`."""
        with single_threaded_blas():
            embeddings = [self.embeddings[v] for v in numbers]
            blocks = Blocks(views, embeddings, rows, chunk_size=chunk_size, n_threads=n_threads)
            return encode(blocks, [self.projections[v] for v in numbers], self.weights[numbers])

    def assign(self, codes, n_threads=1):
        """The nearest center of each code    [eq. 25]"""
        return nearest_centers(codes, self.centers, plain_if_equal(self.bit_weights), n_threads)[0]

    def to_arrays(self):
        """Named arrays, and kernel width, scaling, silence, linear scale and sparsity of each embedding, for a file."""
        arrays = {"centers": self.centers, "bit_weights": self.bit_weights, "weights": self.weights}
        for v, (embedding, P) in enumerate(zip(self.embeddings, self.projections, strict=True)):
            arrays |= {f"view{v}.{name}": getattr(embedding, name) for name in _EMBEDDING_ARRAYS}
            if embedding.basis is not None:
                arrays[f"view{v}.basis"] = embedding.basis
            arrays[f"view{v}.projection"] = P
        return arrays, [[e.gamma, e.scaling, e.silence, e.linear, e.sparse] for e in self.embeddings]

    @classmethod
    def from_arrays(cls, arrays, kernels):
        embeddings, projections = [], []
        for v, (gamma, scaling, silence, *others) in enumerate(kernels):
            scaling = {True: "root", False: "standard"}.get(scaling, scaling)  # early models: whether roots are taken
            offset, factor, anchors, mean = (arrays[f"view{v}.{name}"] for name in _EMBEDDING_ARRAYS)
            basis = arrays.get(f"view{v}.basis")
            linear, sparse = others + [0.0, False][len(others) :]  # early models do not have them
            kernel = float(gamma), mean, str(scaling), bool(silence), float(linear), bool(sparse)
            embeddings.append(Embedding(offset, factor, basis, anchors, *kernel))
            projections.append(arrays[f"view{v}.projection"])
        return cls(embeddings, projections, arrays["weights"], arrays["centers"], arrays["bit_weights"])


def nearest_two(codes, centers, bit_weights, n_threads=1, numbers=None):
    """The nearest center of each code, its distance, and how much farther the second nearest is, in bits.

    Bit weights are scaled to a mean of 1. Centers with equal `numbers` (c,) form one cluster: the second nearest is in
    another one.
    """
    labels = nearest_centers(codes, centers, plain_if_equal(bit_weights), n_threads)[0]
    distance, margin = distances_to_own(codes, labels, centers, bit_weights, n_threads, numbers)
    return labels, distance, np.maximum(margin, 0)


def distances_to_own(codes, labels, centers, bit_weights, n_threads=1, numbers=None):
    """Distance of each code to the center of its label, and how much farther the nearest other center is, in bits. The
    difference is negative if constraints keep a code away from its nearest center. Scaled as in :func:`nearest_two`."""
    numbers = np.arange(len(centers)) if numbers is None else numbers
    weights = plain_if_equal(bit_weights / bit_weights.mean())
    distance, margin = np.empty(len(codes), np.float32), np.zeros(len(codes), np.float32)
    for rows in row_ranges(len(codes), max(1, 2**22 // len(centers))):
        table = hamming_distances(codes[rows], centers, weights, n_threads).astype(np.float32)
        distance[rows] = table[np.arange(len(table)), labels[rows]]
        if len(np.unique(numbers)) > 1:
            table[numbers[labels[rows], None] == numbers] = np.inf
            margin[rows] = table.min(1) - distance[rows]
    return distance, margin
