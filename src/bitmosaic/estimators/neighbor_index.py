"""NeighborIndex: exact k-nearest and radius search among packed codes in Hamming space."""

from numbers import Integral

import numpy as np

from bitmosaic.errors import DataTypeError, InvalidDataError, ParameterError, import_extra
from bitmosaic.estimators.binary_kmeans import as_bytes, check_codes
from bitmosaic.estimators.parameters import is_dask
from bitmosaic.hamming.codes import as_words
from bitmosaic.hamming.search import QUERIES_PER_PIECE, CodeTree, each_piece, empty_heaps, split_keys
from bitmosaic.io.threads import available_threads

MOST_ROWS = 2**32


class NeighborIndex:
    """Exact nearest neighbors among packed codes: the result of comparing with all codes, ties by lowest row.

    Similar codes are stored in blocks of at most 128. The bits that all codes of a block share, its center and its
    radius give a lower bound on the distance to any of them, so most blocks are skipped (`bitmosaic.hamming.search`). A
    query that cannot skip blocks, such as a random code among random codes, is compared with all codes in a batch.
    Neither the result nor the index depends on the number of threads.

    The index takes 21 bytes per code of 128 bits: the code, 4 bytes for its row, and 1 for the blocks. Building
    takes up to twice that. The index keeps no reference to the input codes.

    Parameters
    ----------
    codes : (n, width) uint8 (as from ``np.packbits`` or ``HSIC.transform``) or uint64
    n_threads : int or None, default=None
        None is all cores.
    """

    def __init__(self, codes, n_threads=None):
        self.n_threads = available_threads(n_threads if n_threads is None else _whole("n_threads", n_threads, 1))
        codes = _packed(codes)
        if not len(codes):
            raise InvalidDataError("An index needs at least one code; got none.")
        self._n_bytes, self._trees = codes.shape[1], []
        self._append(codes)

    def __len__(self):
        return sum(map(len, self._trees))

    def __repr__(self):
        return f"<NeighborIndex of {len(self):,} codes of {self.n_bits} bits>"

    @property
    def n_bits(self):
        return 8 * self._n_bytes

    @property
    def nbytes(self):
        """Memory of the index in bytes."""
        return sum(tree.nbytes for tree in self._trees)

    @property
    def codes(self):
        """A copy of all codes in the order of their rows, (n, n_bits/8) uint8."""
        return np.concatenate([tree.packed(self._n_bytes) for tree in self._trees])

    def add(self, codes):
        """Append codes; their rows follow the existing ones. Returns the index.

        New codes get their own tree, and trees of similar size are merged: adding many codes in small batches takes
        about as long as building a few indexes.
        """
        self._append(self._checked(codes))
        return self

    def _append(self, codes):
        if len(self) + len(codes) >= MOST_ROWS:
            raise InvalidDataError(f"An index can hold fewer than {MOST_ROWS:,} codes; got {len(self) + len(codes):,}.")
        kept = list(self._trees)  # self._trees is unchanged if building fails
        while kept and len(kept[-1]) <= 2 * len(codes):
            codes = np.concatenate([kept.pop().packed(self._n_bytes), codes])
        if len(codes):
            self._trees = [*kept, CodeTree.of(codes, sum(map(len, kept)), self.n_threads)]

    def kneighbors(self, X, n_neighbors=10, return_distance=True):
        """Return the nearest codes of each row of X: distances (q, k) int32 and rows (q, k) int64, nearest first.

        k is `n_neighbors`, or the number of codes if that is less. Without `return_distance`, only the rows.
        """
        k = min(_whole("n_neighbors", n_neighbors, 1), len(self))
        queries = as_words(self._checked(X))
        heaps = empty_heaps(len(queries), k)
        for tree in self._trees:
            heaps = tree.with_nearest(queries, heaps, self.n_threads)
        distances, rows = split_keys(np.sort(heaps, axis=1))
        return (distances, rows) if return_distance else rows

    def radius_neighbors(self, X, radius, return_distance=True, sort_results=True):
        """Return all codes within `radius` bits of each row of X.

        Two object arrays (q,), of distances int32 and rows int64: nearest first, ties by lowest row. Without
        `sort_results`, in the order of the rows.
        """
        radius = min(_whole("radius", radius, 0), self.n_bits)
        queries = as_words(self._checked(X))

        distances, rows = np.empty((2, len(queries)), object)

        def search(piece):
            for i in range(piece.start, piece.stop):
                keys = np.concatenate([tree.within(queries[i], radius) for tree in self._trees])
                near, found = split_keys(np.sort(keys))
                order = slice(None) if sort_results else np.argsort(found)
                distances[i], rows[i] = near[order], found[order]

        each_piece(search, len(queries), QUERIES_PER_PIECE, self.n_threads)
        return (distances, rows) if return_distance else rows

    # ---- faiss

    def to_faiss(self):
        """Return the codes as a ``faiss.IndexBinaryFlat``."""
        index = import_extra("faiss", "bench", "A faiss index").IndexBinaryFlat(self.n_bits)
        for tree in self._trees:
            index.add(np.ascontiguousarray(tree.packed(self._n_bytes)))
        return index

    @classmethod
    def from_faiss(cls, index, n_threads=None):
        """Build an index from a ``faiss.IndexBinary`` that keeps the codes: Flat, IVF, HNSW, MultiHash, IDMap2.

        Row i is the code of id i; ids must be 0, 1, … without gaps.
        """
        faiss = import_extra("faiss", "bench", "A faiss index")
        index = getattr(index, "storage", index)  # graphs and hashes keep the codes in a storage index
        ids = _ids(index, faiss)
        if not np.array_equal(np.sort(ids), np.arange(index.ntotal)):
            raise InvalidDataError(
                f"The ids of a faiss index must be 0, 1, … without gaps; this {type(index).__name__} has other ids. "
                "Reconstruct the codes, and keep the ids separately."
            )
        if isinstance(index, faiss.IndexBinaryIVF):  # before faiss 1.15.1, its reconstruct_n writes beyond the codes
            codes = _of_lists(index, index.invlists.get_codes, index.code_size, faiss)
            return cls(codes.astype(np.uint8).reshape(-1, index.code_size)[np.argsort(ids)], n_threads)
        return cls(index.reconstruct_n(0, index.ntotal), n_threads)

    def _checked(self, X):
        codes = _packed(X)
        if codes.shape[1] != self._n_bytes:
            raise InvalidDataError(
                f"Codes must have {self.n_bits} bits, as those in the index; got {8 * codes.shape[1]}."
            )
        return codes


def _whole(name, value, lowest):
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < lowest:
        raise ParameterError(f"{name} must be a whole number, at least {lowest}; got {value!r}.")
    return int(value)


def _packed(codes):
    check_codes(codes)
    if is_dask(codes):
        raise DataTypeError("An index needs codes in memory or in a memory map; got a Dask array. Call .compute().")
    return as_bytes(codes)


def _of_lists(index, values, width, faiss):
    """The values of all inverted lists, one after the other; ``values(number)`` points to `width` for each code."""
    sizes = [width * index.invlists.list_size(number) for number in range(index.nlist)]
    parts = [faiss.rev_swig_ptr(values(number), size).copy() for number, size in enumerate(sizes) if size]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _ids(index, faiss):
    """Return the ids of the codes in a faiss index."""
    if isinstance(index, faiss.IndexBinaryIVF):
        return _of_lists(index, index.invlists.get_ids, 1, faiss)
    if hasattr(index, "id_map"):
        return faiss.vector_to_array(index.id_map)
    return np.arange(index.ntotal)
