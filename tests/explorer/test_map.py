"""The map: similar codes lie together, any number of images works, a stored map is used for its own codes only."""

import numpy as np
import pytest

from bitmosaic.explorer import map as map_module
from bitmosaic.explorer.map import MAX_COORDINATE, MapPoints, make_map, store_map, stored_map
from bitmosaic.run.folder import Run


def three_kinds(n, seed=0):
    """Codes around three distant centers, in turn."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 3
    centers = rng.integers(256, size=(3, 16), dtype=np.uint8)
    return centers[kinds] ^ np.packbits(rng.random((n, 128)) < 0.05, axis=1), kinds


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(map_module, "LANDMARKS", 120)


class CodesOnly(Run):
    """A run folder that has codes and no other files."""

    def __init__(self, folder, codes):
        self.folder, self.codes = folder, codes

    def column(self, name):
        return self.codes


@pytest.fixture
def run(tmp_path):
    return CodesOnly(tmp_path, three_kinds(40)[0])


def write_map(run, **arrays):
    """A map file for the codes of the run with one point, some arrays replaced or added."""
    one = np.zeros(1, np.int64)
    store_map(run, MapPoints(one, one, one))
    file = run.folder / f"{map_module.NAME}.npz"
    with np.load(file) as stored:
        np.savez_compressed(file, **(dict(stored) | arrays))
    return file


def test_similar_codes_lie_together(small):
    codes, kinds = three_kinds(600)
    rows, x, y = make_map(codes)
    np.testing.assert_array_equal(rows, np.arange(600))
    places = np.stack([x, y], axis=1).astype(float)
    centers = np.stack([np.median(places[kinds == kind], axis=0) for kind in range(3)])
    nearest = np.linalg.norm(places[:, None] - centers, axis=2).argmin(1)
    assert np.mean(nearest == kinds) > 0.98


@pytest.mark.parametrize("n", [1, 3, 5])
def test_few_images_have_a_map(n):
    rows, x, y = make_map(three_kinds(n)[0])
    assert rows.tolist() == list(range(n))
    assert (x.dtype, y.dtype, x.shape, y.shape) == (np.uint16, np.uint16, (n,), (n,))
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == n


def test_coordinates_fill_the_range_and_keep_the_aspect_ratio():
    x, y = map_module._quantized(np.array([[0.0, 5], [10, 5], [5, 7], [2, 3]]))
    assert x.tolist() == [0, MAX_COORDINATE, 32768, 13107]
    assert y.tolist() == [32768, 32768, 45874, 19660]


@pytest.mark.parametrize("distinct", [1, 5])
def test_equal_codes_are_scattered(small, distinct):
    codes = np.repeat(three_kinds(distinct)[0], 200, axis=0)
    _, x, y = make_map(codes)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) > 0.95 * len(codes)


def test_the_same_seed_gives_the_same_map(small):
    codes, _ = three_kinds(400)
    first, again = make_map(codes, seed=3), make_map(codes, seed=3)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (make_map(codes, seed=4).x != first.x).any()


def test_many_images_are_sampled_evenly(small, monkeypatch):
    monkeypatch.setattr(map_module, "MAX_POINTS", 200)
    rows = make_map(three_kinds(1001)[0]).rows
    assert len(rows) == 200
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.histogram(rows, 10, (0, 1001))[0], 20)


def test_progress_increases_and_stays_below_its_total(small):
    told = []
    make_map(three_kinds(2500)[0], progress=lambda *state: told.append(state))
    assert [stage for stage, _, _ in told] == ["computing the map"] + ["placing images"] * 3
    done = [done for _, done, _ in told[1:]]
    assert done == sorted(done)
    assert all(done < total for _, done, total in told)


def test_a_stored_map_is_read_back(run):
    places = make_map(run.codes)
    store_map(run, places)
    for one, other in zip(stored_map(run), places, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
