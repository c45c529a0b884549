"""NeighborIndex against a stable sort of all distances in NumPy, and against faiss."""

import sys

import numpy as np
import pytest
from crowded_codes import crowded_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from bitmosaic import NeighborIndex
from bitmosaic.errors import DataTypeError, InvalidDataError, MissingExtraError, ParameterError
from bitmosaic.hamming import search as code_tree
from bitmosaic.hamming import tree_kernels
from bitmosaic.hamming.codes import hamming_distances_numpy
from bitmosaic.hamming.search import CodeTree

KINDS = ("random", "crowded", "one code", "few bits")


def some_codes(kind, n, n_bytes, seed):
    rng = np.random.default_rng(seed)
    if kind == "crowded":
        return crowded_codes(n, n_bytes, seed)
    codes = rng.integers(256, size=(n, n_bytes), dtype=np.uint8)
    if kind == "one code":
        codes[:] = codes[0]
    elif kind == "few bits":  # four bits determine whole bytes, as in learned codes
        codes = rng.integers(256, size=(16, n_bytes), dtype=np.uint8)[codes[:, 0] % 16]
        codes[:, -1] ^= rng.choice(np.uint8([0, 0, 1, 128]), size=n)
    return codes


def brute_force(codes, queries, k):
    distances = hamming_distances_numpy(queries, codes)
    rows = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, rows, 1), rows


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# ---- the nearest


@pytest.mark.parametrize("worth", [1, 8])
@given(
    st.sampled_from(KINDS),
    st.integers(1, 700),
    st.sampled_from([1, 2, 8, 11, 16, 32, 40]),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_the_nearest_are_those_of_a_stable_sort_of_all_distances(worth, kind, n, n_bytes, k, seed):
    codes = some_codes(kind, n, n_bytes, seed)
    queries = np.concatenate([codes[: min(n, 5)], some_codes("random", 3, n_bytes, seed + 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_tree, "LEAF", 4)
        patch.setattr(code_tree, "FAN", 3)
        patch.setattr(code_tree, "WORTH", worth)  # 1: every search ends in the tree, 8: many fall back to a full scan
        distances, rows = NeighborIndex(codes, n_threads=1).kneighbors(queries, k)
    assert (distances.dtype, rows.dtype, rows.shape) == (np.int32, np.int64, (len(queries), min(k, n)))
    assert_same((distances, rows), brute_force(codes, queries, k))


def test_many_codes_in_leaves_and_nodes_of_their_usual_size():
    codes = some_codes("crowded", 30_000, 16, 0)
    index = NeighborIndex(codes)
    assert len(index._trees[0].begin) > index._trees[0].n_leaves > tree_kernels.NODES_AT_ONCE
    queries = np.concatenate([codes[::3000], some_codes("random", 5, 16, 1)])
    for k in (10, 10_000):
        assert_same(index.kneighbors(queries, k), brute_force(codes, queries, k))


def test_a_near_query_skips_most_blocks(monkeypatch):
    codes = some_codes("crowded", 20_000, 16, 3)
    tree, taken = CodeTree.of(codes), []
    monkeypatch.setattr(CodeTree, "_scanned", lambda *_: taken.append(1))
    monkeypatch.setattr(code_tree, "WORTH", 2)
    tree.with_nearest(np.ascontiguousarray(codes[:50]).view(np.uint64), code_tree.empty_heaps(50, 5))
    assert not taken


def test_the_result_does_not_depend_on_threads_or_branches(monkeypatch):
    codes = some_codes("crowded", 5000, 16, 2)
    queries = np.concatenate([codes[:40], some_codes("random", 40, 16, 1)])
    expected = brute_force(codes, queries, 20)
    monkeypatch.setattr(code_tree, "ROWS_PER_PIECE", 700)
    monkeypatch.setattr(code_tree, "NODES_PER_PIECE", 16)
    for large in (1000, 10_000):
        monkeypatch.setattr(code_tree, "LARGE", large)
        one, three = (NeighborIndex(codes, n_threads=n) for n in (1, 3))
        assert_same(one._trees[0].codes, three._trees[0].codes)
        for index in (one, three):
            assert_same(index.kneighbors(queries, 20), expected)


def test_rows_without_distances_and_empty_queries():
    codes = crowded_codes(50, 4, 0)
    index = NeighborIndex(codes)
    np.testing.assert_array_equal(
        index.kneighbors(codes[:3], 4, return_distance=False), index.kneighbors(codes[:3], 4)[1]
    )
    assert index.kneighbors(codes[:0], 4)[1].shape == (0, 4)
    assert len(index.radius_neighbors(codes[:0], 4)[1]) == 0


# ---- within a radius


@given(
    st.sampled_from(KINDS),
    st.integers(1, 700),
    st.sampled_from([1, 5, 16, 33]),
    st.integers(0, 90),
    st.integers(0, 9999),
)
@settings(max_examples=30, deadline=None)
def test_all_within_a_radius_are_found_and_no_others(kind, n, n_bytes, radius, seed):
    codes = some_codes(kind, n, n_bytes, seed)
    queries = np.concatenate([codes[:2], some_codes("random", 2, n_bytes, seed + 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_tree, "LEAF", 4)
        patch.setattr(code_tree, "FAN", 3)
        patch.setattr(code_tree, "FEW", 7)
        index = NeighborIndex(codes, n_threads=1)
    distances, rows = index.radius_neighbors(queries, radius)
    by_row = index.radius_neighbors(queries, radius, return_distance=False, sort_results=False)
    assert distances.dtype == rows.dtype == object
    for i, all_distances in enumerate(hamming_distances_numpy(queries, codes)):
        order = np.argsort(all_distances, kind="stable")
        order = order[all_distances[order] <= radius]
        assert_same((distances[i], rows[i]), (all_distances[order], order))
        np.testing.assert_array_equal(by_row[i], np.sort(order))


# ---- adding


@given(st.lists(st.integers(0, 90), min_size=1, max_size=8), st.sampled_from([3, 16]), st.integers(0, 9999))
@settings(max_examples=15, deadline=None)
def test_added_codes_are_found_like_the_first_ones(sizes, n_bytes, seed):
    codes = crowded_codes(40 + sum(sizes), n_bytes, seed)
    index = NeighborIndex(codes[:40], n_threads=1)
    first = 40
    for size in sizes:
        assert index.add(codes[first : first + size]) is index
        first += size
    assert len(index) == len(codes)
    np.testing.assert_array_equal(index.codes, codes)
    queries = np.concatenate([codes[-3:], some_codes("random", 2, n_bytes, seed)])
    assert_same(index.kneighbors(queries, 9), brute_force(codes, queries, 9))
    assert sum(map(len, index.radius_neighbors(queries, 5)[1])) == (hamming_distances_numpy(queries, codes) <= 5).sum()


def test_adding_codes_one_by_one_leaves_few_trees():
    codes = crowded_codes(300, 8, 0)
    index = NeighborIndex(codes[:1])
    for row in range(1, 300):
        index.add(codes[row : row + 1])
    assert len(index._trees) < 10


# ---- faiss


def test_to_faiss_and_back():
    pytest.importorskip("faiss")
    codes = crowded_codes(500, 16, 0)
    flat = NeighborIndex(codes[:300]).add(codes[300:]).to_faiss()
    assert (flat.ntotal, flat.d) == (500, 128)
    np.testing.assert_array_equal(NeighborIndex.from_faiss(flat).codes, codes)


def test_faiss_indexes_with_reconstruct_n_are_read():
    faiss = pytest.importorskip("faiss")
    codes = crowded_codes(500, 16, 0)
    ivf = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(128), 128, 4)
    ivf.train(codes)
    for index in (ivf, faiss.IndexBinaryHNSW(128, 8), faiss.IndexBinaryMultiHash(128, 4, 32)):
        index.add(codes)
        np.testing.assert_array_equal(NeighborIndex.from_faiss(index).codes, codes)


def test_a_faiss_index_with_other_ids_raises_an_error():
    faiss = pytest.importorskip("faiss")
    codes = crowded_codes(60, 16, 0)
    ivf = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(128), 128, 2)
    ivf.train(codes)
    ivf.add_with_ids(codes, 7 + np.arange(60))
    with pytest.raises(InvalidDataError, match=r"must be 0, 1, … without gaps"):
        NeighborIndex.from_faiss(ivf)


def test_without_faiss_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[bench\]'"):
        NeighborIndex(np.zeros((3, 2), np.uint8)).to_faiss()


# ---- errors


def test_bad_codes_and_parameters_raise_an_error():
    codes = crowded_codes(20, 4, 0)
    index = NeighborIndex(codes)
    with pytest.raises(InvalidDataError, match="must have 32 bits, as those in the index; got 40"):
        index.kneighbors(np.zeros((1, 5), np.uint8))
    with pytest.raises(InvalidDataError, match="at least one code"):
        NeighborIndex(codes[:0])
    with pytest.raises(DataTypeError, match="got float64"):
        NeighborIndex(codes.astype(float))
    with pytest.raises(InvalidDataError, match="got shape"):
        index.kneighbors(codes[0])
    for wrong in (0, 1.5, "3"):
        with pytest.raises(ParameterError, match="n_neighbors must be a whole number"):
            index.kneighbors(codes, wrong)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ParameterError, match="radius must be a whole number"):
            index.radius_neighbors(codes, wrong)
    with pytest.raises(ParameterError, match="n_threads"):
        NeighborIndex(codes, n_threads=0)


def test_repr_and_memory_of_an_index():
    index = NeighborIndex(crowded_codes(20_000, 16, 0))
    assert repr(index) == "<NeighborIndex of 20,000 codes of 128 bits>"
    assert 20 < index.nbytes / len(index) < 23
