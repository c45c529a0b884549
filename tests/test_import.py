"""`import bitmosaic` is quick, and its public names are there."""

import subprocess
import sys

import pytest

import bitmosaic


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_bitmosaic_imports_none_of_the_heavy_libraries():
    heavy = ["sklearn", "numba", "scipy", "numpy", "pandas", "h5py", "pyarrow"]
    code = f"import sys, bitmosaic; print([name for name in {heavy} if name in sys.modules])"
    assert run(code) == "[]"


def test_a_public_name_is_loaded_on_first_use():
    code = "import sys, bitmosaic; bitmosaic.HSIC; print('sklearn' in sys.modules, bitmosaic.HSIC.__module__)"
    assert run(code) == "True bitmosaic.hsic"


@pytest.mark.parametrize("name", bitmosaic.__all__)
def test_every_public_name_resolves(name):
    assert getattr(bitmosaic, name) is not None


def test_public_names_are_what_they_say():
    from bitmosaic import HSIC, BinaryKMeans, metrics, views

    assert HSIC.__name__ == "HSIC"
    assert BinaryKMeans.__name__ == "BinaryKMeans"
    assert callable(metrics.clustering_scores)
    assert callable(views.as_views)


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(bitmosaic) == [
        "BinaryKMeans",
        "Constraints",
        "HSIC",
        "NeighborIndex",
        "__version__",
        "curation",
        "features",
        "metrics",
        "pipeline",
        "views",
    ]


def test_star_import_gives_the_public_names():
    code = "from bitmosaic import *; print(HSIC.__name__, BinaryKMeans.__name__, metrics.__name__, views.__name__)"
    assert run(code) == "HSIC BinaryKMeans bitmosaic.metrics bitmosaic.views"


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
