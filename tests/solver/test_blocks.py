"""Blocks of embeddings: bitwise identical however they are read, cached or computed; and the first scan."""

import literal
import numpy as np
import pytest

from bitmosaic import HSIC
from bitmosaic.errors import InvalidDataError
from bitmosaic.hamming.codes import unpack
from bitmosaic.io.threads import single_threaded_blas
from bitmosaic.solver.blocks import Blocks, Sums, own_grams
from bitmosaic.solver.embedding import Embedding, fit_embedding, normalization
from bitmosaic.solver.loop import encode
from bitmosaic.solver.scan import ROWS_PER_BLOCK, rows_per_block, scan
from bitmosaic.views import Views


@pytest.fixture(autouse=True)
def one_blas_thread():
    with single_threaded_blas():
        yield


def views_of(*arrays):
    return Views(tuple("abc"[: len(arrays)]), arrays)


def embedding(rng, d, l):
    """Random anchors, scale and mean; γ such that similarities are neither 0 nor 1."""
    return Embedding(
        rng.normal(size=d),
        rng.uniform(0.5, 2, d).astype(np.float32),
        None,
        rng.normal(size=(l, d)).astype(np.float32),
        4.0 * d,
        rng.uniform(0, 0.5, l).astype(np.float32),
    )


def uncentered(rng, d, l):
    blank = embedding(rng, d, l)
    return blank.centered(np.zeros(l))


# ---- the embedding of a row


@pytest.mark.parametrize("d", [1, 64])
def test_an_embedding_is_the_rbf_formula_less_the_mean(d):
    rng = np.random.default_rng(d)
    e, X = embedding(rng, d, 5), rng.normal(size=(70, d)).astype(np.float32)
    Z, missing = e(X)
    scaled = (X.astype(np.float64) - e.offset) * e.factor
    np.testing.assert_allclose(Z[:70], literal.kernel(scaled, e.anchors, e.gamma) - e.mean, atol=2e-6)
    assert not missing[:70].any()


def test_missing_rows_are_zero():
    rng = np.random.default_rng(0)
    e, X = embedding(rng, 3, 5), rng.normal(size=(70, 3)).astype(np.float32)
    X[[0, 33, 69]] = np.nan
    Z, missing = e(X)
    assert Z.shape == (70, 5)
    np.testing.assert_array_equal(np.flatnonzero(missing), [0, 33, 69])
    np.testing.assert_array_equal(Z[missing], 0)
    np.testing.assert_array_equal(e.normalize(X)[0][missing], 0)
    assert (Z[~missing] != 0).all()
    assert np.isnan(X[0]).all()  # the input is not written into


def alone_and_together(d, l):
    """Embeddings of some rows alone, in a batch of 7, and inside 3000 rows."""
    rng = np.random.default_rng(d * l)
    e, X = embedding(rng, d, l), rng.normal(size=(3000, d)).astype(np.float32)
    together = e(X)[0]
    for row in (0, 5, 6, 11, 63, 64, 1234, 2990, 2999):
        first = min(row, 2993)
        yield row, e(X[row : row + 1])[0][0], e(X[first : first + 7])[0][row - first], together[row]


@pytest.mark.parametrize(("d", "l"), [(1, 300), (64, 5), (200, 70)])
def test_a_row_has_nearly_the_same_embedding_alone_or_in_a_batch(d, l):
    for _, alone, in_seven, together in alone_and_together(d, l):
        np.testing.assert_allclose(alone, together, rtol=0, atol=1e-6)
        np.testing.assert_allclose(in_seven, together, rtol=0, atol=1e-6)


def test_a_row_has_the_same_code_alone_or_in_a_batch():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1500, d)).astype(np.float32) for d in (3, 64)]
    embeddings = [embedding(rng, d, 70) for d in (3, 64)]
    Ps = [rng.normal(size=(70, 32)).astype(np.float32) for _ in arrays]
    weights = np.array([0.3, 0.7])
    codes = encode(Blocks(views_of(*arrays), embeddings), Ps, weights)
    for row in range(0, 1500, 10):
        alone = encode(Blocks(views_of(*(X[row : row + 1] for X in arrays)), embeddings), Ps, weights)
        np.testing.assert_array_equal(alone[0], codes[row])
    assert 0.4 < (unpack(codes) > 0).mean() < 0.6


# ---- the width of the kernel


def test_the_kernel_width_is_twice_the_mean_distance_to_the_nearest_other_anchor():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)).astype(np.float32)
    anchors, probes = X[:10], X[5:30]
    own = np.array([*range(5, 10), *[-1] * 20])
    e = fit_embedding(
        normalization(np.full(4, 0.5), np.full(4, 2, np.float32)),
        [anchors[:4], anchors[4:]],
        [(probes[:3], own[:3]), (probes[3:], own[3:])],
        1.5,
    )
    nearest = []
    for probe, index in zip(2 * probes.astype(float), own, strict=True):
        nearest.append(min(np.linalg.norm(probe - 2 * a) for j, a in enumerate(anchors.astype(float)) if j != index))
    sigma = 1.5 * 2 * np.mean(nearest)
    assert e.gamma == pytest.approx(2 * sigma**2, rel=1e-5)
    np.testing.assert_allclose(e.anchors, 2 * (anchors - 0.5), rtol=1e-6)


def test_the_kernel_width_covers_outlying_samples():
    X = np.array([[0.0], [1.0], [1.5], [0.5], [9.0]], np.float32)
    args = normalization(np.zeros(1), np.ones(1, np.float32)), [X[:2]], [(X[2:], np.full(3, -1))], 1.5
    near = fit_embedding(*args, reach=0.1)  # half the probes have an anchor within 0.5; twice the mean is 6
    assert near.gamma == fit_embedding(*args).gamma == pytest.approx(2 * (1.5 * 6) ** 2)
    assert fit_embedding(*args, reach=1.0).gamma == pytest.approx(2 * (1.5 * 8) ** 2)


def test_a_rooted_embedding_is_that_of_the_roots():
    rng = np.random.default_rng(0)
    X = rng.gamma(1, 5, size=(60, 3)).astype(np.float32)
    probes = [np.full(40, -1)]
    facts = np.sqrt(X).mean(0, dtype=np.float64), np.ones(3, np.float32)
    rooted = fit_embedding(normalization(*facts, "root"), [X[:20]], [(X[20:], *probes)], 1.0)
    plain = fit_embedding(normalization(*facts), [np.sqrt(X[:20])], [(np.sqrt(X[20:]), *probes)], 1.0)
    assert rooted.gamma == pytest.approx(plain.gamma)
    np.testing.assert_allclose(rooted(X)[0], plain(np.sqrt(X))[0], atol=1e-6)
    new = np.array([[4, -9, np.nan], [np.nan] * 3], np.float32)[:, :3]
    new[0, 2] = 0
    rows, missing = rooted.normalize(new)
    np.testing.assert_allclose(rows[0], np.array([2, -3, 0]) - facts[0], rtol=1e-5)
    np.testing.assert_array_equal(missing, [False, True])


def test_identical_rows_get_a_kernel_width():
    X = np.ones((5, 2), np.float32)
    plain = normalization(np.ones(2), np.zeros(2, np.float32))
    e = fit_embedding(plain, [X[:2]], [(X, np.array([0, 1, -1, -1, -1]))], 1.0)
    assert e.gamma == 1.0
    np.testing.assert_array_equal(e(X)[0][:5], 1)


# ---- blocks


def some_views():
    """Two views of 2500 rows; the first lacks some rows."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2500, d)).astype(np.float32) for d in (3, 40)]
    arrays[0][rng.random(2500) < 0.2] = np.nan
    return arrays, [uncentered(rng, 3, 20), uncentered(rng, 40, 30)]


def everything(rows=None, **how):
    """Means, Gram matrices and embeddings of the blocks."""
    arrays, embeddings = some_views()
    blocks = Blocks(views_of(*arrays), embeddings, rows, **how)
    chosen = slice(None) if rows is None else rows
    blocks.center([(~np.isnan(X[chosen, 0])).sum() for X in arrays])
    means = [e.mean for e in blocks.embeddings]
    return [*means, *blocks.grams(), *(Z for number in range(len(blocks)) for Z in blocks.embedded(number))]


ONE_BLOCK = ROWS_PER_BLOCK * 50 * 4


@pytest.mark.parametrize("rows", [None, np.arange(0, 2500, 2)], ids=["all rows", "some rows"])
@pytest.mark.parametrize(
    "how",
    [
        {"cache_bytes": 10**9},
        {"cache_bytes": ONE_BLOCK, "n_threads": 2},
        {"chunk_size": 77, "n_threads": 3},
    ],
    ids=str,
)
def test_cache_chunks_and_threads_do_not_change_a_bit(rows, how):
    expected = everything(rows)
    for found, known in zip(everything(rows, **how), expected, strict=True):
        np.testing.assert_array_equal(found, known)


def test_means_grams_and_embeddings_agree_with_numpy():
    arrays, embeddings = some_views()
    found = iter(everything())
    dense = []
    for X, e in zip(arrays, embeddings, strict=True):
        Z, _ = literal.embed((X - e.offset) * e.factor, e.anchors, e.gamma)
        has = ~np.isnan(X[:, 0])
        mean = literal.kernel(((X - e.offset) * e.factor)[has], e.anchors, e.gamma).mean(0)
        np.testing.assert_allclose(next(found), mean, atol=1e-6)
        dense.append(Z)
    for Z in dense:
        np.testing.assert_allclose(next(found), Z.T @ Z, atol=1e-2)
    for start in range(0, 2500, ROWS_PER_BLOCK):
        for Z in dense:
            rows = Z[start : start + ROWS_PER_BLOCK]
            block = next(found)
            np.testing.assert_allclose(block, rows, atol=2e-6)
            np.testing.assert_array_equal(block[(rows == 0).all(1)], 0)


def test_rounding_in_a_gram_matrix_is_far_below_the_ridge():
    """Tight blobs: nearly all directions have no variance, and only the ridge of 1e-3 holds their projections."""
    rng = np.random.default_rng(0)
    X = (10 * rng.normal(size=(4, 10))[np.arange(800) % 4] + rng.normal(size=(800, 10))).astype(np.float32)
    anchors = X[:160]
    e = Embedding(np.zeros(10), np.ones(10, np.float32), None, anchors, 200.0, np.zeros(160, np.float32))
    blocks = Blocks(views_of(X), [e])
    blocks.center([800])
    (gram,) = blocks.grams()
    Z = np.vstack([blocks.embedded(number)[0] for number in range(len(blocks))]).astype(np.float64)
    assert np.linalg.norm(gram - Z.T @ Z, 2) < 1e-6


def test_blocks_are_cached_only_as_far_as_memory_allows():
    arrays, embeddings = some_views()
    for room, kept in ((0, 0), (ONE_BLOCK - 1, 0), (ONE_BLOCK, 1), (2.5 * ONE_BLOCK, 2), (99 * ONE_BLOCK, 3)):
        assert Blocks(views_of(*arrays), embeddings, cache_bytes=room).n_cached == kept


def test_no_more_rows_than_chunk_size_are_read_at_once():
    class Watched:
        shape, dtype = (300, 2), np.dtype(np.float32)
        asked = ()

        def __getitem__(self, rows):
            self.asked = (*self.asked, rows.stop - rows.start)
            return np.ones((rows.stop - rows.start, 2), np.float32)

    array = Watched()
    Blocks(views_of(array), [uncentered(np.random.default_rng(0), 2, 4)], chunk_size=70).grams()
    assert array.asked == (70, 70, 70, 70, 20)


@pytest.mark.parametrize("rows", [None, np.arange(1, 2500, 2)], ids=["all rows", "some rows"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_raw_rows_are_those_at_a_slice_or_at_positions(rows, chunk_size):
    arrays, embeddings = some_views()
    blocks = Blocks(views_of(*arrays), embeddings, rows, chunk_size=chunk_size)
    chosen = np.arange(2500) if rows is None else rows
    for where in (slice(0, 5), slice(1000, 1100), np.array([0, 1, 2, 7, 1200]), np.array([1249]), np.arange(40, 60)):
        for v, X in enumerate(arrays):
            np.testing.assert_array_equal(blocks.raw(v, where)[0], X[chosen[where]])


def test_rows_are_checked_whenever_they_are_read():
    """Without a scan before."""
    X = np.ones((2500, 4), np.float32)
    X[2100, 1] = np.nan
    rows = np.arange(0, 2500, 3)
    e = [uncentered(np.random.default_rng(0), 4, 5)]
    for blocks in (Blocks(views_of(X), e), Blocks(views_of(X), e, rows), Blocks(views_of(X), e, rows, chunk_size=10)):
        with pytest.raises(InvalidDataError, match="view 'a' has NaN in 1 of 4 columns of row 2100"):
            blocks.totals()
        position = 2100 if blocks.rows is None else 700
        with pytest.raises(InvalidDataError, match="of row 2100"):
            e[0].normalize(*blocks.raw(0, np.array([3, position])))
    X[2100] = np.nan
    Y = X[:, :1].copy()
    for some in (None, rows):
        with pytest.raises(
            InvalidDataError, match=r"row 2100 is NaN in all of \['a', 'b'\] \(1 such rows in this block\)"
        ):
            Blocks(views_of(X, Y), [*e, uncentered(np.random.default_rng(0), 1, 5)], some).totals()


@pytest.mark.parametrize("rows", [None, np.arange(0, 2500, 2)], ids=["all rows", "some rows"])
def test_totals_are_the_sums_over_all_rows(rows):
    arrays, embeddings = some_views()
    blocks = Blocks(views_of(*arrays), embeddings, rows, n_threads=2)
    chosen = slice(None) if rows is None else rows
    for total, X, e in zip(blocks.totals(), arrays, embeddings, strict=True):
        assert total.dtype == np.float64
        np.testing.assert_allclose(total, e(X[chosen])[0].sum(0, dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize(
    "how", [{"n_threads": 2}, {"cache_bytes": ONE_BLOCK}, {"chunk_size": 77, "cache_bytes": 10**9}], ids=str
)
def test_the_joint_gram_matrix_is_the_same_however_it_is_computed(how):
    arrays, embeddings = some_views()
    expected, slices = Blocks(views_of(*arrays), embeddings).joint_gram()
    found, same = Blocks(views_of(*arrays), embeddings, **how).joint_gram()
    np.testing.assert_array_equal(found, expected)
    assert slices == same == [slice(0, 20), slice(20, 50)]


@pytest.mark.parametrize(
    "positions",
    [np.arange(2500), np.array([0, 5, 1023, 1024, 2499]), np.arange(1024, 2048), np.array([2300]), np.array([], int)],
    ids=["all", "a few", "one whole block", "one", "none"],
)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_pass_over_some_positions_sees_their_rows_in_order(positions, n_threads):
    arrays, embeddings = some_views()
    blocks = Blocks(views_of(*arrays), embeddings, n_threads=n_threads)
    whole = [np.vstack(parts) for parts in zip(*map(blocks.embedded, range(len(blocks))), strict=True)]
    column, sums = blocks.run_some(
        lambda Zs, own: (np.hstack([*Zs, own[:, None]]), [len(own), 1]), positions, positions
    )
    if not len(positions):
        assert column is None
        assert sums == []
        return
    np.testing.assert_array_equal(column, np.hstack([*(Z[positions] for Z in whole), positions[:, None]]))
    assert sums == [len(positions), len(np.unique(positions // ROWS_PER_BLOCK))]  # blocks without any are left out


def test_merged_sums_of_parts_equal_the_sums_of_all_blocks():
    arrays, embeddings = some_views()
    expected = Blocks(views_of(*arrays), embeddings).grams()
    total = Sums(2500)
    for rows in (slice(2048, 2500), slice(0, 1024), slice(1024, 2048)):
        part = Blocks(views_of(*(X[rows] for X in arrays)), embeddings)
        total.merge(part.collect(own_grams, (), 2500)[1])
    for G, other in zip(total.values(), expected, strict=True):
        np.testing.assert_array_equal(G, other)


def test_very_wide_views_come_in_smaller_blocks():
    assert rows_per_block([10, 4096]) == 1024
    assert rows_per_block([10, 4097]) == 512
    assert rows_per_block([10**5]) == 32
    assert rows_per_block([10**9]) == 8


# ---- the scan


def test_missing_rows_are_left_out_of_the_scan():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 3000, 4)).astype(np.float32)
    gone = rng.random(3000) < 0.5
    gone[1024:2048] = True  # a whole block
    X[gone] = np.nan
    facts, other = scan(views_of(X, Y))
    np.testing.assert_array_equal(facts.present, ~gone)
    assert other.present.all()
    np.testing.assert_allclose(facts.mean, X[~gone].mean(0, dtype=np.float64), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(facts.variance, X[~gone].var(0, dtype=np.float64), rtol=1e-9)


def test_a_view_that_no_image_has_is_refused_at_fit():
    views = [np.random.default_rng(0).normal(size=(20, 2)), np.full((20, 3), np.nan)]
    present = [facts.present.any() for facts in scan(views_of(*views))]
    assert present == [True, False]
    with pytest.raises(
        InvalidDataError,
        match=r"A view must have at least one row that is not NaN; view 'view1' has none\. Remove the view\.",
    ):
        HSIC(2).fit(views)
