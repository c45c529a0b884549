"""`import bitmosaic` is quick, and its public names are importable."""

import json
import subprocess
import sys

import pytest

import bitmosaic

# One fresh process answers the questions of several tests, in this order.
QUESTIONS = """
import json, sys
import bitmosaic

answers = {}
heavy = ["sklearn", "numba", "scipy", "numpy", "pandas", "h5py", "pyarrow"]
answers["heavy"] = [name for name in heavy if name in sys.modules]

import bitmosaic.metrics
from bitmosaic.metrics import clustering_scores
from bitmosaic import metrics
answers["same scores"] = clustering_scores is metrics.clustering_scores is bitmosaic.metrics.clustering_scores
answers["acc"] = clustering_scores([0, 1], [1, 0])["acc"]

answers["module"] = bitmosaic.HSIC.__module__

import numpy as np
X = np.random.default_rng(0).normal(size=(60, 3))
codes = bitmosaic.HSIC(2, n_bits=8, n_anchors=5, random_state=0).fit(X).codes_
bitmosaic.BinaryKMeans(2, random_state=0).fit(codes).predict(codes)
bitmosaic.NeighborIndex(codes).kneighbors(codes, 2)
answers["dask"] = [name for name in ("dask", "bitmosaic.estimators.dask") if name in sys.modules]

names = {}
exec("from bitmosaic import *", names)
answers["star"] = sorted(name for name in names if not name.startswith("__"))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run([sys.executable, "-c", QUESTIONS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_bitmosaic_imports_none_of_the_heavy_libraries(answers):
    assert answers["heavy"] == []


def test_a_public_name_is_loaded_on_first_use(answers):
    assert answers["module"] == "bitmosaic.estimators.hsic"


def test_clustering_scores_can_be_imported_from_bitmosaic_metrics(answers):
    assert answers["same scores"]
    assert answers["acc"] == 1.0


def test_star_import_gives_the_public_names(answers):
    assert answers["star"] == sorted(name for name in bitmosaic.__all__ if name != "__version__")


def test_a_local_fit_does_not_import_dask(answers):
    assert answers["dask"] == []


@pytest.mark.parametrize("name", bitmosaic.__all__)
def test_every_public_name_resolves(name):
    assert getattr(bitmosaic, name) is not None


def test_public_names_have_the_right_types():
    from bitmosaic import HSIC, BinaryKMeans, metrics, views

    assert HSIC.__name__ == "HSIC"
    assert BinaryKMeans.__name__ == "BinaryKMeans"
    assert callable(metrics.clustering_scores)
    assert callable(views.as_views)


def test_dir_lists_only_the_public_names():
    assert dir(bitmosaic) == [
        "BinaryKMeans",
        "Constraints",
        "HSIC",
        "NeighborIndex",
        "__version__",
        "features",
        "metrics",
        "pipeline",
        "views",
    ]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'bitmosaic' has no attribute 'HSICC'"):
        bitmosaic.HSICC  # noqa: B018


def test_the_version_is_that_of_the_package():
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("bitmosaic")
    except PackageNotFoundError:
        pytest.skip("bitmosaic is not installed here, only on the path")
    assert bitmosaic.__version__ == installed
