"""What a fit leaves behind: everything that turns rows of some views into codes and clusters."""

from dataclasses import dataclass

import numpy as np

from bitmosaic.codes import hamming_distances, nearest_centers
from bitmosaic.embedding import Embedding
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.clustering import plain_if_equal
from bitmosaic.solver.loop import encode
from bitmosaic.threads import row_ranges, single_threaded_blas

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

    @property
    def products_per_row(self):
        """Multiplications that encoding a row of all views takes: components, similarities, bits."""
        reduced = sum(e.basis.size for e in self.embeddings if e.basis is not None)
        return reduced + sum(e.anchors.size + P.size for e, P in zip(self.embeddings, self.projections, strict=True))

    def encode(self, views, numbers, chunk_size=None, n_threads=1, rows=None):
        """Packed codes of all (or some sorted) rows of `views`, which are the fitted views with these `numbers`."""
        with single_threaded_blas():
            embeddings = [self.embeddings[v] for v in numbers]
            blocks = Blocks(views, embeddings, rows, chunk_size=chunk_size, n_threads=n_threads)
            return encode(blocks, [self.projections[v] for v in numbers], self.weights[numbers])

    def assign(self, codes, n_threads=1):
        """The nearest center of each code    [eq. 25]"""
        return nearest_centers(codes, self.centers, plain_if_equal(self.bit_weights), n_threads)[0]

    def nearest_two(self, codes, n_threads=1, numbers=None):
        """The nearest center of each code, the distance to it and how much farther the second one is, in bits.

        Where bits have weights, these are scaled to a mean of 1. Centers of the same `numbers` (c,) are one cluster:
        the second one is the nearest of another.
        """
        labels = self.assign(codes, n_threads)
        distance, margin = self.distances_to_own(codes, labels, n_threads, numbers)
        return labels, distance, np.maximum(margin, 0)

    def distances_to_own(self, codes, labels, n_threads=1, numbers=None):
        """The distance of each code to the center of its label, and how much farther the nearest other one is, in bits:
        less than 0 where constraints keep it from there. Scaled as by :meth:`nearest_two`."""
        numbers = np.arange(len(self.centers)) if numbers is None else numbers
        weights = plain_if_equal(self.bit_weights / self.bit_weights.mean())
        distance, margin = np.empty(len(codes), np.float32), np.zeros(len(codes), np.float32)
        for rows in row_ranges(len(codes), max(1, 2**22 // len(self.centers))):
            table = hamming_distances(codes[rows], self.centers, weights, n_threads).astype(np.float32)
            distance[rows] = table[np.arange(len(table)), labels[rows]]
            if len(np.unique(numbers)) > 1:
                table[numbers[labels[rows], None] == numbers] = np.inf
                margin[rows] = table.min(1) - distance[rows]
        return distance, margin

    def to_arrays(self):
        """Named arrays, and the width and root of each embedding, for a file."""
        arrays = {"centers": self.centers, "bit_weights": self.bit_weights, "weights": self.weights}
        for v, (embedding, P) in enumerate(zip(self.embeddings, self.projections, strict=True)):
            arrays |= {f"view{v}.{name}": getattr(embedding, name) for name in _EMBEDDING_ARRAYS}
            if embedding.basis is not None:
                arrays[f"view{v}.basis"] = embedding.basis
            arrays[f"view{v}.projection"] = P
        return arrays, [[e.gamma, e.root, e.silence] for e in self.embeddings]

    @classmethod
    def from_arrays(cls, arrays, kernels):
        embeddings, projections = [], []
        for v, (gamma, root, silence) in enumerate(kernels):
            offset, factor, anchors, mean = (arrays[f"view{v}.{name}"] for name in _EMBEDDING_ARRAYS)
            basis = arrays.get(f"view{v}.basis")
            embeddings.append(Embedding(offset, factor, basis, anchors, float(gamma), mean, bool(root), bool(silence)))
            projections.append(arrays[f"view{v}.projection"])
        return cls(embeddings, projections, arrays["weights"], arrays["centers"], arrays["bit_weights"])

    def expected_arrays(self, n_clusters, n_bytes):
        """The type and shape that each array of :meth:`to_arrays` must have if the anchors are right."""
        arrays = {
            "centers": (np.uint8, (n_clusters, n_bytes)),
            "bit_weights": (np.float64, (8 * n_bytes,)),
            "weights": (np.float64, (len(self.embeddings),)),
        }
        for v, embedding in enumerate(self.embeddings):
            l, k = embedding.anchors.shape
            d = k if embedding.basis is None else len(embedding.basis)
            shapes = {"offset": (d,), "factor": (d,), "anchors": (l, k), "mean": (l,), "projection": (l, 8 * n_bytes)}
            if embedding.basis is not None:
                shapes["basis"] = (d, k)
            arrays |= {f"view{v}.{name}": (np.float32, shape) for name, shape in shapes.items()}
            arrays[f"view{v}.offset"] = (np.float64, (d,))
        return arrays

    def is_sound(self):
        """Whether the numbers, whose types and shapes are right, can be computed with."""
        widths_are_sane = all(1e-30 < e.gamma < 1e30 and e.n_anchors > 0 for e in self.embeddings)
        return widths_are_sane and all(
            bool(w.min() >= 0 and 0 < w.max() < 1e30) for w in (self.weights, self.bit_weights)
        )
