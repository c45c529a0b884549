"""`bench codes`: nearest centers compared with faiss, on a few codes."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from bitmosaic.bench import codes as code_bench
from bitmosaic.bench.codes import OURS, PEER, contest, planted_codes
from bitmosaic.cli import app
from bitmosaic.errors import MissingExtraError, ParameterError
from bitmosaic.hamming.codes import hamming_distances

SMALL = ["bench", "codes", "--rows", "3000", "--clusters", "20", "--bits", "64", "--repeats", "1", "--threads", "1"]


def silent(*_):
    pass


def test_the_command_prints_speed_and_agreement():
    done = CliRunner().invoke(app, SMALL)
    assert done.exit_code == 0, done.output
    assert "3,000 codes of 64 bits, 20 centers, 1 threads, best of 1" in done.output
    assert "distances the same, labels the same" in done.output
    told = " ".join(done.output.split())
    for part in (OURS, PEER, "billion", "× faiss"):
        assert part in told


def test_a_tenth_of_the_bits_of_planted_codes_are_flipped_and_a_seed_repeats_them():
    codes, centers = planted_codes(4000, 10, 128, seed=3)
    assert (codes.shape, centers.shape) == ((4000, 16), (10, 16))
    assert hamming_distances(codes, centers).min(1).mean() / 128 == pytest.approx(0.1, abs=0.005)
    for again, known in zip(planted_codes(4000, 10, 128, seed=3), (codes, centers), strict=True):
        np.testing.assert_array_equal(again, known)


@pytest.mark.parametrize("n_centers", [1, 2, 30])
def test_ties_do_not_count_as_differences(n_centers):
    codes, centers = (np.random.default_rng(0).integers(4, size=(n, 4), dtype=np.uint8) for n in (500, n_centers))
    result = contest(codes, centers, 2, 1, silent)
    assert result.same_distances
    assert result.same_labels
    assert set(result.seconds) == {OURS, PEER}


def test_a_wrong_label_or_distance_is_detected(monkeypatch):
    codes, centers = planted_codes(200, 5, 32)
    real = code_bench.nearest_centers
    monkeypatch.setattr(code_bench, "nearest_centers", lambda *a, **k: [x + 1 for x in real(*a, **k)])
    result = contest(codes, centers, 1, 1, silent)
    assert not result.same_distances
    assert not result.same_labels


def test_a_length_that_is_not_whole_bytes_is_refused():
    with pytest.raises(ParameterError, match="multiple of 8; got 12"):
        planted_codes(10, 2, 12)


def test_without_faiss_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitmosaic\[bench\]'"):
        contest(*planted_codes(10, 2, 16), 1, 1, silent)
