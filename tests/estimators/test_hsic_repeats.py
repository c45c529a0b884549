"""Labels and codes depend only on data, parameters and seed, not on threads, blocks, memory or the form of the data."""

import numpy as np
import pytest

from bitmosaic import HSIC
from bitmosaic.solver.memory import Needs
from bitmosaic.solver.scan import ROWS_PER_BLOCK, rows_per_block
from bitmosaic.views import write_views

N, N_ANCHORS, N_BITS = 2500, 60, 64
N_BLOCKS = -(-N // ROWS_PER_BLOCK)
WIDTHS = (9, 16, 5)
WAYS = [  # start, train_size
    ("proposals", 0.6),
    ("rotation", "auto"),
]


def overlapping_views():
    """Clusters that overlap, so that rounding in another order would change some bits; the last view has gaps."""
    rng = np.random.default_rng(0)
    truth = rng.integers(6, size=N)
    views = [
        (0.7 * rng.standard_normal((6, d))[truth] + rng.standard_normal((N, d))).astype(np.float32, order="C")
        for d in WIDTHS
    ]
    views[2][rng.random(N) < 0.2] = np.nan
    return views


VIEWS = overlapping_views()
NAMED = dict(zip(["view0", "view1", "view2"], VIEWS, strict=True))


def fitted(X, start, train_size, **changes):
    settings = {"n_bits": N_BITS, "n_anchors": N_ANCHORS, "n_init": 2, "n_threads": 1, "random_state": 7}
    return HSIC(6, start=start, train_size=train_size, **(settings | changes)).fit(X)


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request):
    """A start and a train_size, and the reference model."""
    return request.param, fitted(VIEWS, *request.param)


def assert_same(model, reference):
    np.testing.assert_array_equal(model.codes_, reference.codes_)
    np.testing.assert_array_equal(model.labels_, reference.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, reference.cluster_centers_)
    np.testing.assert_array_equal(model.view_weights_, reference.view_weights_)
    assert model.objective_history_ == reference.objective_history_


def test_the_data_have_several_blocks_and_codes_sensitive_to_rounding(way):
    (start, train_size), reference = way
    assert N_BLOCKS == 3
    assert len(np.unique(reference.codes_, axis=0)) > N // 10
    nudged = [X + np.float32(1e-3) * np.sin(np.arange(X.size, dtype=np.float32)).reshape(X.shape) for X in VIEWS]
    assert (fitted(nudged, start, train_size).codes_ != reference.codes_).any()


def test_another_seed_gives_other_codes(way):
    assert (fitted(VIEWS, *way[0], random_state=8).codes_ != way[1].codes_).any()


@pytest.mark.parametrize("random_state", [7, np.random.RandomState(7)], ids=["int", "generator"])
def test_the_same_seed_gives_the_same_fit(way, random_state):
    if isinstance(random_state, np.random.RandomState):
        random_state = np.random.RandomState(7)  # a new one each time: a fit changes its state
    assert_same(fitted(VIEWS, *way[0], random_state=random_state), way[1])


@pytest.mark.parametrize("n_threads", [2, None])
def test_the_number_of_threads_does_not_matter(way, n_threads):
    model = fitted(VIEWS, *way[0], n_threads=n_threads)
    assert_same(model, way[1])
    np.testing.assert_array_equal(model.transform(VIEWS), way[1].codes_)
    np.testing.assert_array_equal(model.predict(VIEWS), way[1].labels_)


@pytest.mark.parametrize("chunk_size", [100, 10 * N])
def test_the_chunk_size_does_not_matter(way, chunk_size):
    model = fitted(VIEWS, *way[0], chunk_size=chunk_size, n_threads=2)
    assert_same(model, way[1])
    np.testing.assert_array_equal(model.transform(VIEWS), way[1].codes_)


def needs_of(start, widths, n_components, n_train):
    proposals = start == "proposals"
    n_draws = 3 if proposals and n_train <= 5000 else 1  # the cache is divided among draws
    return Needs(widths, n_components, N_ANCHORS, N_BITS, 6, n_train, n_train, proposals=proposals, n_draws=n_draws)


@pytest.mark.parametrize("cached", [0, 1])
def test_the_memory_limit_does_not_matter(way, cached, capsys):
    (start, train_size), reference = way
    n_train = N if train_size == "auto" else 1500
    needs = needs_of(start, WIDTHS, HSIC().n_components, n_train)
    limit = needs.fixed(n_threads=1) + cached * (needs.fused + needs.n_draws * 4 * ROWS_PER_BLOCK * sum(needs.embedded))
    assert_same(fitted(VIEWS, start, train_size, memory_limit=limit, verbose=1), reference)
    n_blocks = -(-n_train // ROWS_PER_BLOCK)
    assert f"{cached} of {n_blocks} blocks stay in memory" in capsys.readouterr().out


def test_threads_that_do_not_fit_into_the_memory_limit_do_not_matter(way):
    (start, train_size), reference = way
    n_train = N if train_size == "auto" else 1500
    needs = needs_of(start, WIDTHS, HSIC().n_components, n_train)
    limit = needs.fixed(n_threads=3)
    assert needs.plan(limit, 8) == (3, 0)
    assert_same(fitted(VIEWS, start, train_size, memory_limit=limit, n_threads=8), reference)


# ---- wide views, reduced to principal components


WIDE_N, WIDE_WIDTHS, N_COMPONENTS = 700, (5000, 40), 16
WIDE_BLOCK = 512  # rows: a block of 1024 rows of the first view would be too large


def wide_views():
    rng = np.random.default_rng(1)
    truth = rng.integers(6, size=WIDE_N)
    views = [(0.3 * rng.standard_normal((6, d))[truth] + rng.standard_normal((WIDE_N, d))) for d in WIDE_WIDTHS]
    views[1][rng.random(WIDE_N) < 0.2] = np.nan
    return [X.astype(np.float32) for X in views]


WIDE = wide_views()


@pytest.fixture(scope="module", params=["proposals", "rotation"])
def wide(request):
    """A start, and the reference model of wide views."""
    return request.param, fitted(WIDE, request.param, 600, n_components=N_COMPONENTS)


def test_wide_views_have_several_blocks_and_are_reduced(wide):
    assert rows_per_block(WIDE_WIDTHS) == WIDE_BLOCK < 600
    assert [e.basis.shape for e in wide[1]._model.embeddings] == [(d, N_COMPONENTS) for d in WIDE_WIDTHS]


@pytest.mark.parametrize(
    "how",
    [
        {"n_threads": 3, "chunk_size": 77},
        {"chunk_size": 10**6, "n_threads": 2},
    ],
    ids=str,
)
def test_threads_and_chunks_do_not_matter_for_wide_views(wide, how):
    model = fitted(WIDE, wide[0], 600, n_components=N_COMPONENTS, **how)
    assert_same(model, wide[1])
    np.testing.assert_array_equal(model.transform(WIDE), wide[1].codes_)
    np.testing.assert_array_equal(model.predict(WIDE), wide[1].labels_)
    for e, other in zip(model._model.embeddings, wide[1]._model.embeddings, strict=True):
        np.testing.assert_array_equal(e.basis, other.basis)


@pytest.mark.parametrize("cached", [0, 2])
def test_the_memory_limit_does_not_matter_for_wide_views(wide, cached, capsys):
    needs = needs_of(wide[0], WIDE_WIDTHS, N_COMPONENTS, 600)
    limit = needs.fixed(n_threads=1) + needs.fused + cached * needs.n_draws * 4 * WIDE_BLOCK * sum(needs.embedded)
    model = fitted(WIDE, wide[0], 600, n_components=N_COMPONENTS, memory_limit=limit, verbose=1)
    assert_same(model, wide[1])
    assert f"{cached} of 2 blocks stay in memory" in capsys.readouterr().out


def memory_maps(folder):
    for i, X in enumerate(VIEWS):
        np.save(folder / f"{i}.npy", X)
    return [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(len(VIEWS))]


def views_folder(folder):
    write_views(folder / "views", NAMED)
    return folder / "views"


FORMS = {
    "float64": lambda folder: [X.astype(np.float64) for X in VIEWS],
    "every other column": lambda folder: [np.repeat(X, 2, axis=1)[:, ::2] for X in VIEWS],
    "the other byte order": lambda folder: [X.astype(">f4") for X in VIEWS],
    "other names": lambda folder: dict(zip(["hog", "gist", "lbp"], VIEWS, strict=True)),
    "memory maps": memory_maps,
    "the name of a views folder": lambda folder: str(views_folder(folder)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_data_does_not_matter(way, form, tmp_path):
    X = FORMS[form](tmp_path)
    model = fitted(X, *way[0])
    assert_same(model, way[1])
    np.testing.assert_array_equal(model.transform(X), way[1].codes_)
    np.testing.assert_array_equal(model.predict(X), way[1].labels_)


def test_one_array_is_a_list_of_one_view(tmp_path):
    reference = fitted(VIEWS[1], "proposals", "auto")
    assert_same(fitted([VIEWS[1]], "proposals", "auto"), reference)
    assert_same(fitted({"only": VIEWS[1]}, "proposals", "auto"), reference)
    np.save(tmp_path / "x.npy", VIEWS[1])
    assert_same(fitted(np.load(tmp_path / "x.npy", mmap_mode="r"), "proposals", "auto"), reference)


def test_one_image_at_a_time_is_encoded_as_in_a_batch(way):
    model = way[1]
    rows = np.flatnonzero(~np.isnan(VIEWS[2][:, 0]))[::60][:30]
    codes = np.concatenate([model.transform([X[i : i + 1] for X in VIEWS]) for i in rows])
    np.testing.assert_array_equal(codes, model.codes_[rows])
    labels = [model.predict([X[i : i + 1] for X in VIEWS])[0] for i in rows]
    np.testing.assert_array_equal(labels, model.labels_[rows])
