"""partial_fit: each center is the majority of all codes ever assigned to it. A file keeps the sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_views import VIEWS as NAMED

from bitmosaic import HSIC, BinaryKMeans
from bitmosaic.errors import DataTypeError, InvalidDataError
from bitmosaic.estimators.model_file import read_model
from bitmosaic.estimators.parameters import NotFittedError
from bitmosaic.hamming.codes import hamming_distances_numpy, unpack
from bitmosaic.solver.clustering import Majority

VIEWS = list(NAMED.values())
CODES = np.random.default_rng(0).integers(256, size=(300, 4), dtype=np.uint8)


def by_a_loop(centers, batches):
    """Sums and centers after each batch, by the definition: assign, add up bit by bit, take the majority."""
    centers, sums = centers.copy(), np.zeros((len(centers), 8 * centers.shape[1]), np.int64)
    for codes, labels in batches:
        labels = hamming_distances_numpy(codes, centers).argmin(1) if labels is None else labels
        for code, label in zip(codes, labels, strict=True):
            sums[label] += unpack(code[None], np.int64)[0]
        signs = unpack(centers, np.int64)
        for j, k in np.argwhere(sums != 0):
            signs[j, k] = np.sign(sums[j, k])
        centers = np.packbits(signs > 0, axis=1)
    return centers, sums


@pytest.mark.parametrize("sizes", [[1] * 20, [7, 60, 33]])
def test_batches_give_the_sums_and_centers_of_a_plain_loop(sizes):
    model = BinaryKMeans(5, n_init=1, random_state=0).fit(CODES[:200])
    pieces = np.split(CODES[200:], np.cumsum(sizes)[:-1])
    batches = [(CODES[:200], model.labels_), *((piece, None) for piece in pieces)]
    start = model.cluster_centers_.copy()
    for piece in pieces:
        model.partial_fit(piece)
    # the fit alone does not move the centers
    centers, sums = by_a_loop(start, batches[:1])
    assert np.array_equal(centers, start)
    centers, sums = by_a_loop(start, batches)
    np.testing.assert_array_equal(model._majority.bit_sums, sums)
    np.testing.assert_array_equal(model.cluster_centers_, centers)
    assert model._majority.counts.sum() == 300


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_moving_the_centers_never_raises_the_distance_of_all_codes_to_their_own(seed, n_batches):
    rng = np.random.default_rng(seed)
    codes, labels = rng.integers(256, size=(40, 2), dtype=np.uint8), rng.integers(3, size=40)
    state = Majority(rng.integers(256, size=(3, 2), dtype=np.uint8), np.zeros((3, 16), np.int64), np.zeros(3, np.int64))
    for some in np.array_split(np.arange(40), n_batches):
        seen = slice(0, some[-1] + 1)
        before = np.unpackbits(codes[seen] ^ state.centers[labels[seen]]).sum()
        state = state.with_codes(codes[some], labels[some])
        assert np.unpackbits(codes[seen] ^ state.centers[labels[seen]]).sum() <= before


def test_a_tied_bit_does_not_change():
    for bit in (0, 255):
        state = Majority(np.array([[bit]], np.uint8), np.zeros((1, 8), np.int64), np.zeros(1, np.int64))
        moved = state.with_codes(np.array([[0b11110000], [0b00001111]], np.uint8), np.array([0, 0]))
        assert moved.centers[0, 0] == bit


def test_labels_are_those_of_the_last_batch_before_the_update():
    model = BinaryKMeans(4, random_state=0).fit(CODES[:200])
    expected = model.predict(CODES[200:])
    distances = model.transform(CODES[200:]).min(1).sum()
    model.partial_fit(CODES[200:])
    np.testing.assert_array_equal(model.labels_, expected)
    assert model.inertia_ == distances


def test_the_first_batch_of_an_unfitted_estimator_is_a_fit():
    model, fitted = (BinaryKMeans(4, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(model.partial_fit(CODES).labels_, fitted.fit(CODES).labels_)
    with pytest.raises(InvalidDataError, match="must have 32 bits, as at fit; got 16"):
        model.partial_fit(CODES[:, :2])


def test_a_second_fit_resets_the_sums():
    model = BinaryKMeans(4, random_state=0).fit(CODES).partial_fit(CODES[:50]).fit(CODES)
    assert model._majority.counts.sum() == 300


def test_partial_fit_after_sample_weights_raises_an_error():
    model = BinaryKMeans(4, random_state=0).fit(CODES, sample_weight=np.full(300, 0.5))
    with pytest.raises(NotFittedError, match="Fit again without weights"):
        model.partial_fit(CODES)


@pytest.mark.parametrize("kind", ["HSIC", "BinaryKMeans"])
def test_sums_are_saved_and_loaded(kind, tmp_path):
    model, batches = _fitted(kind), _batches(kind)
    whole = _fitted(kind)
    for batch in batches:
        whole.partial_fit(batch)
        model.partial_fit(batch).save(tmp_path / "model")
        model = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(model.cluster_centers_, whole.cluster_centers_)
    np.testing.assert_array_equal(model._majority.bit_sums, whole._majority.bit_sums)


def _fitted(kind):
    if kind == "BinaryKMeans":
        return BinaryKMeans(4, random_state=0).fit(CODES[:200])
    return HSIC(4, n_bits=32, n_anchors=40, random_state=0).fit([view[:400] for view in VIEWS])


def _batches(kind):
    if kind == "BinaryKMeans":
        return CODES[200:250], CODES[250:]
    return [view[400:500] for view in VIEWS], [view[500:] for view in VIEWS]


def test_hsic_moves_its_centers_like_binary_kmeans():
    model = _fitted("HSIC")
    start, before = model.cluster_centers_.copy(), (model.codes_, model.labels_)
    batches = _batches("HSIC")
    pieces = [(model.transform(batch), None) for batch in batches]
    for batch in batches:
        model.partial_fit(batch)
    signs = Majority.of(start, *before)
    for codes, _ in pieces:
        labels = model._model.__class__(
            model._model.embeddings, model._model.projections, model._model.weights, signs.centers, model.bit_weights_
        ).assign(codes)
        signs = signs.with_codes(codes, labels)
    np.testing.assert_array_equal(model.cluster_centers_, signs.centers)
    np.testing.assert_array_equal(model.predict(batches[1]), model._model.assign(pieces[1][0]))
    assert len(model.labels_) == len(model.codes_) == 100


def test_an_older_file_without_sums_computes_them_from_its_codes(tmp_path):
    model = _fitted("HSIC")
    model.save(tmp_path / "model")
    assert "bit_sums" not in read_model(tmp_path / "model", "HSIC")[0]
    loaded = HSIC.load(tmp_path / "model")
    np.testing.assert_array_equal(
        loaded.partial_fit(_batches("HSIC")[0]).cluster_centers_,
        model.partial_fit(_batches("HSIC")[0]).cluster_centers_,
    )


def test_dask_arrays_raise_an_error():
    da = pytest.importorskip("dask.array")
    with pytest.raises(DataTypeError, match="got a Dask array"):
        _fitted("BinaryKMeans").partial_fit(da.from_array(CODES))
    with pytest.raises(DataTypeError, match="got Dask arrays"):
        _fitted("HSIC").partial_fit([da.from_array(view) for view in VIEWS])
