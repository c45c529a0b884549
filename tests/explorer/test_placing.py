"""The map: near codes lie together, every size works, and a stored map is used for its own codes only."""

from types import SimpleNamespace

import numpy as np
import pytest

from bitmosaic.explorer import kept, placing
from bitmosaic.explorer.placing import LARGEST, place, store_places, stored_places


def three_kinds(n, seed=0):
    """Codes around three that are far apart, in turn."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 3
    centers = rng.integers(256, size=(3, 16), dtype=np.uint8)
    return centers[kinds] ^ np.packbits(rng.random((n, 128)) < 0.05, axis=1), kinds


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(placing, "LANDMARKS", 120)


@pytest.fixture
def run(tmp_path):
    codes, _ = three_kinds(40)
    return SimpleNamespace(folder=tmp_path, codes=codes, column=lambda name: codes)


def test_pictures_of_a_kind_lie_together_whether_landmarks_or_not(small):
    codes, kinds = three_kinds(600)
    rows, x, y = place(codes)
    np.testing.assert_array_equal(rows, np.arange(600))
    places = np.stack([x, y], axis=1).astype(float)
    centers = np.stack([np.median(places[kinds == kind], axis=0) for kind in range(3)])
    nearest = np.linalg.norm(places[:, None] - centers, axis=2).argmin(1)
    assert np.mean(nearest == kinds) > 0.98


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10])
def test_few_pictures_have_a_map(n):
    rows, x, y = place(three_kinds(n)[0])
    assert rows.tolist() == list(range(n))
    assert (x.dtype, y.dtype, x.shape, y.shape) == (np.uint16, np.uint16, (n,), (n,))
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) == n


def test_the_longer_side_fills_the_range_and_proportions_stay():
    x, y = placing._quantised(np.array([[0.0, 5], [10, 5], [5, 7], [2, 3]]))
    assert x.tolist() == [0, LARGEST, 32768, 13107]
    assert y.tolist() == [32768, 32768, 45874, 19660]


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_equal_codes_do_not_become_one_dot(small, distinct):
    codes = np.repeat(three_kinds(distinct)[0], 200, axis=0)
    _, x, y = place(codes)
    assert len(set(zip(x.tolist(), y.tolist(), strict=True))) > 0.95 * len(codes)


def test_the_same_seed_gives_the_same_map(small):
    codes, _ = three_kinds(400)
    first, again = place(codes, seed=3), place(codes, seed=3)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (place(codes, seed=4).x != first.x).any()


def test_of_many_pictures_a_sample_is_placed_that_is_spread_evenly(small, monkeypatch):
    monkeypatch.setattr(placing, "MOST_PLACES", 200)
    rows = place(three_kinds(1001)[0]).rows
    assert len(rows) == 200
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(np.histogram(rows, 10, (0, 1001))[0], 20)


def test_progress_never_goes_back_and_never_passes_its_total(small):
    told = []
    place(three_kinds(2500)[0], progress=lambda *state: told.append(state))
    assert [stage for stage, _, _ in told] == ["arranging landmarks"] + ["placing pictures"] * 3
    done = [done for _, done, _ in told[1:]]
    assert done == sorted(done)
    assert all(done < total for _, done, total in told)


def test_a_stored_map_comes_back(run):
    places = place(run.codes)
    store_places(run, places)
    for one, other in zip(stored_places(run), places, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_the_map_of_other_codes_is_not_used(run):
    store_places(run, place(run.codes))
    run.codes[7, 3] ^= 1
    assert stored_places(run) is None


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * len(b)])
def test_a_damaged_map_is_as_none(run, damage):
    assert stored_places(run) is None
    store_places(run, place(run.codes))
    file = run.folder / f"{placing.NAME}.npz"
    file.write_bytes(damage(file.read_bytes()))
    assert stored_places(run) is None


def test_a_map_with_pickled_objects_is_not_read(run):
    codes = np.frombuffer(kept._fingerprint(run.codes), np.uint8)
    np.savez(run.folder / f"{placing.NAME}.npz", rows=np.array([print], object), x=[0], y=[0], codes=codes)
    assert stored_places(run) is None


@pytest.mark.parametrize(
    "forged",
    [
        *({"rows": [10**9]}, {"rows": [-1]}, {"rows": [0.5]}, {"rows": [[0]], "x": [[0]], "y": [[0]]}, {"x": [0, 0]}),
        *({"x": [np.nan]}, {"x": np.zeros(10**7, np.int64)}, {"y": ["a"]}),
    ],
)
def test_a_map_of_the_right_codes_that_somebody_has_forged_is_as_none(run, forged):
    codes = np.frombuffer(kept._fingerprint(run.codes), np.uint8)
    file = run.folder / f"{placing.NAME}.npz"
    np.savez_compressed(file, rows=[0], x=[0], y=[0], codes=codes)
    assert stored_places(run) is not None
    np.savez_compressed(file, **({"rows": [0], "x": [0], "y": [0], "codes": codes} | forged))
    assert stored_places(run) is None


def test_a_map_that_claims_gigabytes_is_not_unpacked(run, monkeypatch):
    """Whatever the machine has room for. All else in it is right, and what is too much would not even be asked for."""
    unpacked = []
    load_npz = kept.load_npz
    monkeypatch.setattr(kept, "load_npz", lambda path: unpacked.append(path) or load_npz(path))
    codes = np.frombuffer(kept._fingerprint(run.codes), np.uint8)
    file = run.folder / f"{placing.NAME}.npz"
    np.savez_compressed(file, rows=[0], x=[0], y=[0], codes=codes, more=np.zeros(10**6, np.uint8))
    assert stored_places(run) is not None
    assert unpacked.pop() == file
    np.savez_compressed(file, rows=[0], x=[0], y=[0], codes=codes, more=np.zeros(2 * 10**6, np.uint8))
    assert stored_places(run) is None
    content = bytearray(file.read_bytes())
    last = content.rindex(b"PK\1\2")  # of the entries in the list at the end; the size when unpacked is 24 bytes on
    content[last + 24 : last + 28] = (3 * 10**9).to_bytes(4, "little")
    file.write_bytes(content)
    assert stored_places(run) is None
    assert not unpacked


def test_an_array_instead_of_a_map_is_as_none(run):
    with open(run.folder / f"{placing.NAME}.npz", "wb") as file:
        np.save(file, np.arange(3))
    assert stored_places(run) is None
