"""Parsing of memory limits, and planning of memory."""

import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from bitmosaic import HSIC
from bitmosaic.errors import ParameterError
from bitmosaic.solver.memory import Needs, parse_memory
from bitmosaic.solver.train import memory_needs


@pytest.mark.parametrize(
    ("limit", "n_bytes"),
    [
        ("512MB", 512_000_000),
        ("1.5 GiB", 1_610_612_736),
        (" 3 kib ", 3072),
        ("7", 7),
        ("0.5Mi", 524_288),
        (1000, 1000),
    ],
)
def test_a_memory_limit_is_read(limit, n_bytes):
    assert parse_memory(limit) == n_bytes


def test_no_limit_is_a_quarter_of_the_memory():
    try:
        with open("/proc/meminfo") as facts:
            kilobytes = int(facts.readline().split()[1])  # MemTotal, in kB
    except OSError:
        pytest.skip("no /proc/meminfo here")
    assert parse_memory(None) == pytest.approx(kilobytes * 1024 / 4, rel=0.01)


@pytest.mark.parametrize("limit", ["", "lots", "-1GB", "1,5GB", "2 GB RAM", "3XB"])
def test_a_limit_that_cannot_be_read_is_quoted(limit):
    with pytest.raises(
        ParameterError, match="memory_limit must be a number of bytes or a string such as '512MB' or '2GiB'; got"
    ) as caught:
        parse_memory(limit)
    assert repr(limit) in str(caught.value)


@pytest.fixture
def needs():
    return Needs(
        (100, 20),
        n_components=32,
        n_anchors=300,
        n_bits=64,
        n_clusters=20,
        n_start=3000,
        n_train=10_000,
        proposals=True,
    )


def test_remaining_memory_goes_to_the_cache(needs):
    n_threads, left = needs.plan(10**9, 2)
    assert n_threads == 2
    assert left == 10**9 - needs.fixed(2)


def test_fewer_threads_are_used_if_memory_is_short(needs):
    n_threads, left = needs.plan(needs.fixed(3), 8)
    assert (n_threads, left) == (3, 0)
    assert needs.plan(needs.fixed(1), 8) == (1, 0)


def test_a_too_small_limit_names_the_minimum(needs):
    least = -(-needs.fixed(1) // 10**6)
    with pytest.raises(
        ParameterError,
        match=rf"memory_limit must be at least {least}MB for 2 views with 300 anchors; got 1MB\. "
        r"Raise it or lower n_anchors\.",
    ):
        needs.plan(1_000_000, 2)
    assert needs.plan(least * 10**6, 2)[0] == 1


def test_many_rows_need_memory_at_the_end_when_the_cache_is_gone(needs):
    many = Needs(**(vars(needs) | {"n_rows": 10**7}))
    assert many.fixed(2) == needs.fixed(2)
    assert 200e6 < many.least(2) - needs._throughout(2) < 300e6
    assert many.plan(10**9, 2) == needs.plan(10**9, 2)
    with pytest.raises(
        ParameterError, match=r"at least 2\d\dMB for 10000000 rows of 2 views .* got 100MB\. Raise it\.$"
    ):
        many.plan(10**8, 2)


@pytest.mark.parametrize("more", ["widths", "n_components", "n_anchors", "n_bits", "n_clusters", "n_start", "n_train"])
def test_larger_shapes_need_more_memory(needs, more):
    larger = {
        "widths": (100, 2000),
        "n_components": 64,
        "n_anchors": 600,
        "n_bits": 128,
        "n_clusters": 4000,
        "n_start": 60_000,
        "n_train": 20_000,
    }
    assert Needs(**(vars(needs) | {more: larger[more]})).fixed(2) > needs.fixed(2)
    assert needs.fixed(3) > needs.fixed(2)


def test_views_that_are_not_reduced_need_wider_anchors_and_no_basis(needs):
    plain = Needs(**(vars(needs) | {"n_components": None}))
    as_wide = Needs(**(vars(needs) | {"n_components": 100}))  # no view is wider
    assert as_wide.fixed(1) == plain.fixed(1)
    assert as_wide.fixed(1) == Needs(**(vars(needs) | {"n_components": 5000})).fixed(1)
    reduced = Needs(**(vars(needs) | {"n_components": 10}))
    assert reduced.fixed(1) != plain.fixed(1)


def test_many_separated_clusters_stay_within_the_limit():
    rng = np.random.default_rng(0)
    y = np.arange(9000) % 600
    views = [(20 * rng.normal(size=(600, d))[y] + rng.normal(size=(9000, d))).astype(np.float32) for d in (12, 9)]
    model = HSIC(600, n_anchors=200, max_iter=1, n_init=1, n_threads=2, random_state=0)
    model.fit(views)  # kernels are loaded
    needs = memory_needs((12, 9), model.check(9000), 9000)
    limit = needs.fixed(2)
    tracemalloc.start()
    try:
        model.set_params(memory_limit=limit).fit(views)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.2 * limit < peak < limit
    assert adjusted_rand_score(y, model.labels_) > 0.95
