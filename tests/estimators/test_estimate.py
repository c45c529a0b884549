"""Estimates of a fit. The only assertion about time is that much more work takes longer."""

from dataclasses import asdict

import numpy as np
import pytest

from bitmosaic import HSIC
from bitmosaic.errors import InvalidDataError, ParameterError
from bitmosaic.estimators import estimate as estimates
from bitmosaic.solver import blocks as solver_data
from bitmosaic.solver import train
from bitmosaic.solver.blocks import Blocks
from bitmosaic.solver.memory import Needs
from bitmosaic.views import Views, write_views


@pytest.fixture
def no_clock(monkeypatch):
    """Estimates without timing."""
    monkeypatch.setattr(estimates, "time_trials", lambda *shapes: (1.0, 2.0, 3.0))


def random_views(n, *widths, seed=0):
    rng = np.random.default_rng(seed)
    return {f"view{v}": rng.standard_normal((n, d), dtype=np.float32) for v, d in enumerate(widths)}


def test_more_rows_and_more_clusters_take_longer():
    model = HSIC(3, n_threads=1, train_size=1000)
    few, rows = (model.estimate(n, [8, 4]) for n in (20_000, 2_000_000))
    clusters = HSIC(300, n_threads=1, train_size=1000).estimate(20_000, [8, 4])
    assert rows.encoding > 10 * few.encoding
    assert rows.clustering > 10 * few.clustering
    assert clusters.clustering > few.clustering
    for estimate in (few, rows, clusters):
        assert min(estimate.learning, estimate.encoding, estimate.clustering) > 0
        assert estimate.seconds == estimate.learning + estimate.encoding + estimate.clustering


@pytest.mark.parametrize("given", [{"preset": "fast"}, {"joint": False, "memory_limit": "60MB"}])
def test_every_kind_of_fit_can_be_estimated(given):
    assert HSIC(5, n_threads=1, **given).estimate(9000, [16]).seconds > 0


@pytest.mark.parametrize(
    "model",
    [
        HSIC(4),
        HSIC.paper(4, n_anchors=40),
        HSIC(4, memory_limit="40MB", n_anchors=100, n_fits=1),
    ],
    ids=["default", "paper", "limited"],
)
def test_memory_agrees_with_the_plan_of_the_solver(model, monkeypatch, no_clock):
    planned = {}

    class Spy(Needs):
        def plan(self, limit, n_threads):
            planned.update(asdict(self), threads=(found := super().plan(limit, n_threads))[0], left=found[1])
            return found

    cached = []
    blocks = solver_data.Blocks

    def spy_blocks(*arguments, **options):
        made = blocks(*arguments, **options)
        cached.append(made.n_cached * 4 * made.step * sum(e.n_columns for e in made.embeddings))
        return made

    monkeypatch.setattr(train, "Needs", Spy)
    monkeypatch.setattr(solver_data, "Blocks", spy_blocks)
    data = random_views(2500, 20, 12)
    model.set_params(random_state=0, n_threads=2, max_iter=1).fit(data)
    estimate = model.estimate(2500, [20, 12])
    threads, left = planned.pop("threads"), planned.pop("left")
    needs = Needs(**planned)
    assert estimate.n_threads == threads
    assert estimate.working_bytes == needs.fixed(threads) + cached[0] + needs.fused > needs.last(threads)
    assert cached[0] <= left
    assert estimate.output_bytes == model.codes_.nbytes + model.labels_.nbytes
    assert estimate.memory_bytes == estimate.working_bytes + estimate.output_bytes


@pytest.mark.parametrize("given", [{"n_components": 8}, {"n_components": None, "n_bits": 64}])
def test_disk_agrees_with_the_size_of_the_files(tmp_path, given, no_clock):
    data = random_views(3000, 200, 12)
    model = HSIC(6, random_state=0, max_iter=1, **given).fit(data)
    model.save(tmp_path / "model.safetensors")
    write_views(tmp_path / "views", Views(tuple(data), tuple(data.values())))
    estimate = model.estimate(3000, {name: X.shape[1] for name, X in data.items()})
    assert estimate.model_bytes == pytest.approx((tmp_path / "model.safetensors").stat().st_size, abs=8000)
    written = sum(file.stat().st_size for file in (tmp_path / "views").glob("*.npy"))
    assert estimate.views_bytes == pytest.approx(written, abs=1000)
    assert estimate.disk_bytes == estimate.views_bytes + estimate.model_bytes


def test_learning_is_linear_in_training_rows_and_the_rest_in_all_rows(monkeypatch):
    asked, clock = [], iter(np.arange(100.0))

    def learn(X, n_rows, o, cached):
        asked.append((n_rows, [x.shape for x in X], cached))
        return 5 + n_rows / 1000, model

    model = HSIC(3, random_state=0, max_iter=1).fit(random_views(600, 6, 4))._model
    monkeypatch.setattr(estimates, "learn", learn)
    monkeypatch.setattr(estimates, "final_clusters", lambda *arguments: next(clock))
    monkeypatch.setattr(estimates.time, "perf_counter", lambda: next(clock))  # encoding 1 s, 60,000 codes 2 s
    found = HSIC(3).estimate(60_000, [6, 4])
    assert asked == [(n, [(12_000, 6), (12_000, 4)], 1.0) for n in (300, 12_000, 6000)]
    assert (found.learning, found.encoding, found.clustering) == (5 + 15, 5.0, 2.0)


def test_rows_have_a_cost_even_if_the_larger_trial_was_not_slower(monkeypatch):
    model = HSIC(3, random_state=0, max_iter=1).fit(random_views(600, 6))._model
    monkeypatch.setattr(estimates, "learn", lambda X, n_rows, o, cached: (6.0, model))
    assert HSIC(3, train_size=24_000).estimate(60_000, [6]).learning == 6 + 0.5 * 6


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (HSIC(3, train_size=5000), [300, 5000]),  # few enough to be tried as they are
        (HSIC(8000), [8000, 16_000, 8000]),  # a fit has at least as many rows as clusters
    ],
)
def test_trials_have_a_limited_number_of_rows(model, rows, monkeypatch):
    asked = []
    small = HSIC(3, random_state=0, max_iter=1).fit(random_views(600, 6))._model
    monkeypatch.setattr(estimates, "learn", lambda X, n_rows, o, cached: asked.append(n_rows) or (1.0, small))
    monkeypatch.setattr(estimates, "final_clusters", lambda *arguments: None)
    model.estimate(1_000_000, [6])
    assert asked == rows


def test_a_trial_caches_the_same_share_with_the_same_threads(monkeypatch):
    seen = []
    monkeypatch.setattr(solver_data, "Blocks", lambda *a, **k: seen.append((k, blocks(*a, **k))) or seen[-1][1])
    blocks = Blocks
    model = HSIC(4, memory_limit="170MB", n_threads=2, max_iter=1, random_state=0)
    model.estimate(100_000, [40, 30])
    options = model.check(100_000)
    needs = train.memory_needs((40, 30), options, 100_000)
    left, whole = needs.plan(options.memory_limit, 2)[1], estimates.cache_bytes(needs)
    share = (left - needs.fused) / (whole - needs.fused)  # F is kept first
    assert 0.1 < share < 0.9
    learning = [made for given, made in seen if given.get("cache_bytes")]
    large = next(made for made in learning if made.n_rows == 12_000)
    assert large.n_cached / len(large) == pytest.approx(share, abs=0.1)
    assert large.n_threads == 2


def test_an_estimate_prints_three_lines(no_clock):
    title, *lines = str(HSIC(1000, n_threads=2).estimate(10_000_000, {"clip": 512, "hog": 64})).splitlines()
    assert title == "10,000,000 rows of clip (512), hog (64) into 1,000 clusters, 2 threads"
    assert [line.split()[0] for line in lines] == ["time", "memory", "disk"]
    assert "6.0 s   learning 1.0 s, encoding 2.0 s, clustering 3.0 s" in lines[0]
    assert "codes and labels 200 MB" in lines[1]
    assert "views as float32 23 GB" in lines[2]


@pytest.mark.parametrize(
    ("value", "text"), [(0.84, "0.8 s"), (61, "61 s"), (150, "2.5 min"), (7200, "2.0 h"), (80_000, "22 h")]
)
def test_times_have_two_digits(value, text):
    assert estimates.in_time(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0 kB"), (12_300, "12 kB"), (3_400_000, "3.4 MB"), (120 * 10**9, "120 GB")]
)
def test_sizes_have_two_digits(value, text):
    assert estimates.in_bytes(value) == text


@pytest.mark.parametrize(
    ("model", "n", "dims", "message"),
    [
        (HSIC("auto"), 100, [3], "An estimate needs a number of clusters"),
        (HSIC(5), 4, [3], "n_samples=4 should be >= n_clusters=5"),
        (HSIC(5), 100, [], "dims must be the columns of each view"),
        (HSIC(5), 100, {"a": 0}, r"got \{'a': 0\}"),
        (HSIC(5), 100, 64, "got 64"),
        (HSIC(5), 1e6, [64], "n must be a whole number of rows; got 1000000.0"),
        (HSIC(5, memory_limit="1MB"), 100_000, [64], "memory_limit must be at least"),
    ],
)
def test_bad_arguments_of_an_estimate_raise_an_error_at_once(model, n, dims, message, no_clock):
    with pytest.raises((InvalidDataError, ParameterError), match=message):
        model.estimate(n, dims)
