"""`bench duplicates`: the copies, the counting of pairs, and the whole measurement on a few images."""

import io
import json

import numpy as np
import pytest
from copied_images import scene
from PIL import Image
from typer.testing import CliRunner

from bitmosaic.bench import duplicates as module
from bitmosaic.bench.duplicates import VARIANTS, Found, best_radius, copy_of, write_copies
from bitmosaic.cli import app
from bitmosaic.errors import InvalidDataError
from bitmosaic.images import open_images


def test_copies_are_of_their_kind():
    image, rng = scene(0, 100), np.random.default_rng(0)

    def opened(kind, amount):
        content, _ = copy_of(image, kind, amount, rng)
        return Image.open(io.BytesIO(content))

    assert opened("resized", 0.5).size == (50, 50)
    assert opened("resized", 1.5).size == (150, 150)
    assert opened("recompressed", 30).format == "JPEG"
    assert opened("cropped", 0.06).size == (94, 94)
    content, _ = copy_of(scene(0, 3), "cropped", 0.03, rng)
    assert Image.open(io.BytesIO(content)).size == (2, 2)


def test_copies_are_seeded_and_cover_all_variants(tmp_path):
    source = open_images(np.stack([scene(i, 16) for i in range(60)]))
    copies = write_copies(source, tmp_path / "a", 0.5, np.random.default_rng(1))
    assert [(copy.kind, copy.amount) for copy in copies[: len(VARIANTS)]] == list(VARIANTS)
    assert len({copy.original for copy in copies}) == 30 == len(list((tmp_path / "a").iterdir()))
    assert write_copies(source, tmp_path / "b", 0.5, np.random.default_rng(1)) == copies
    with pytest.raises(InvalidDataError, match=r"1\.0% of 60 images are 1\. Pass more images"):
        write_copies(source, tmp_path / "c", 0.01, np.random.default_rng(1))


def test_pairs_are_counted_as_documented():
    # Rows 0 to 5 are originals; 0 and 1 are also found without copies. 6 is a resized copy of 0, 7 a crop of 2.
    groups = [np.array([0, 1, 6]), np.array([2, 3, 7]), np.array([4, 5])]
    counts = module._count(groups, {(0, 1), (4, 5)}, {6: 0, 7: 2}, {6: "resized", 7: "cropped"})
    assert counts["resized"] == [1, 0, 1]  # with its original; with a natural duplicate of its original
    assert counts["cropped"] == [1, 2, 0]  # 7 with 3, and 2 with 3, which are in one group only because of 7
    assert counts["recompressed"] == [0, 0, 0]


def test_scores_are_computed_from_the_counts():
    found = Found(0, "both", 4, "resized", planted=10, right=8, wrong=2, natural=6)
    assert (found.precision, found.recall) == (0.8, 0.8)
    assert found.f1 == pytest.approx(0.8)
    assert found.strict_f1 == pytest.approx(2 * 0.8 * 0.5 / 1.3)
    assert np.isnan(Found(0, "both", 4, "resized", 10, 0, 0, 0).precision)
    better = Found(0, "both", 6, "resized", 10, 9, 0, 0)
    assert best_radius([found, better], "both", "resized") == 6


def test_images_with_line_breaks_in_their_names_are_measured(tmp_path, monkeypatch):
    names = [f"two\nlines {i:02d}.png" for i in range(len(VARIANTS))]
    for i, name in enumerate(names):
        Image.fromarray(scene(i, 8)).save(tmp_path / name)
    clustered = []
    monkeypatch.setattr(module.pipeline, "cluster", lambda listed, *a, **b: clustered.extend(open_images(listed).paths))
    monkeypatch.setattr(module, "score", lambda *a: [])
    module.measure(tmp_path, 1, ["images"], share=1.0, progress=lambda *a: None)
    assert clustered[: len(names)] == [str(tmp_path / name) for name in names]
    assert len(clustered) == 2 * len(VARIANTS)


def test_the_whole_measurement_finds_the_copies(tmp_path):
    for i in range(60):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(scene(i, 32)).save(tmp_path / "images" / f"{i:03d}.png")
    arguments = ["bench", "duplicates", tmp_path / "images", "--seeds", 1, "--share", 0.4, "--clusters", 3]
    arguments += ["--view", "hog", "--by", "images,features", "--out", tmp_path / "counts.json"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    assert "24 copies added" in result.output
    counts = json.loads((tmp_path / "counts.json").read_text())
    at_12 = [c for c in counts if (c["way"], c["radius"]) == ("images", 12) and c["kind"] != "cropped"]
    assert len(at_12) == 2
    assert sum(c["right"] for c in at_12) / sum(c["planted"] for c in at_12) > 0.9
    assert {path.name for path in (tmp_path / "images").iterdir()} == {f"{i:03d}.png" for i in range(60)}
