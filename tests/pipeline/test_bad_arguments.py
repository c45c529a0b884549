"""Arguments of the wrong type are a BitmosaicError that is also the usual builtin error."""

import io
import shutil

import numpy as np
import pytest

from bitmosaic import pipeline
from bitmosaic.errors import BitmosaicError
from bitmosaic.estimators.metrics import clustering_scores
from bitmosaic.images import open_images
from bitmosaic.pipeline.curation import draw_sample, find_outliers
from bitmosaic.pipeline.searching import search
from bitmosaic.run.folder import Run

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    np.savez(folder / "views.npz", a=X)
    return pipeline.fit(folder / "views.npz", folder / "run", 3)


def refused(builtin, sentence, call):
    with pytest.raises(BitmosaicError, match=sentence) as caught:
        call()
    assert isinstance(caught.value, builtin)
    assert "\n" not in str(caught.value)


ON_RUNS = [
    lambda run: pipeline.evaluate(run, np.arange(60)),
    lambda run: search(run, np.zeros((1, 16), np.uint8), 2).rows[0].tolist(),
    lambda run: find_outliers(run, 2).table(),
    lambda run: draw_sample(run, 2).table(),
    lambda run: pipeline.add(run, {"a": X[:2]}).images,
    lambda run: pipeline.refit(run).lineage.table(),
]


@pytest.mark.parametrize("use", ON_RUNS)
def test_a_run_can_be_given_by_its_folder(run, tmp_path, use):
    one, other = (shutil.copytree(run.folder, tmp_path / name) for name in "ab")
    assert use(Run(one)) == use(str(other))


def test_labels_in_memory_are_scored_in_row_order(run):
    truth = np.arange(60) % 3
    expected = clustering_scores(truth, run.column("labels"))
    for labels in (truth, truth.tolist(), tuple(map(str, truth))):
        assert pipeline.evaluate(run, labels) == expected


@pytest.mark.parametrize(
    ("labels", "builtin", "sentence"),
    [
        ([1, 2], ValueError, "one label for each of 60 images; the array has 2"),
        (None, ValueError, "Labels must be one value"),
    ],
)
def test_other_types_than_labels_are_refused(run, labels, builtin, sentence):
    refused(builtin, sentence, lambda: pipeline.evaluate(run, labels))


def test_other_types_than_images_are_refused():
    refused(TypeError, "got a list with a NoneType in it", lambda: open_images([None]))
    refused(TypeError, "Images come from", lambda: open_images(io.BytesIO))
    refused(ValueError, r"got shape \(60, 5\)", lambda: open_images(memoryview(X)))
    assert len(open_images(memoryview(np.zeros((4, 9, 9, 3), np.uint8)))) == 4
