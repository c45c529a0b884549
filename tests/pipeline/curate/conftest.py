"""A small run over images of which some are copies."""

import shutil

import pytest
from copied_pictures import write_scenes

from bitmosaic import pipeline
from bitmosaic.run.folder import Run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("curated")
    pipeline.cluster(write_scenes(root / "pictures"), root / "run", 3, views=("hog", "ch"))
    return root


@pytest.fixture
def pictures(made, tmp_path):
    """A copy of the images for one test. The copied run refers to it."""
    return shutil.copytree(made / "pictures", tmp_path / "pictures")


@pytest.fixture
def run(made, pictures, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    recipe = tmp_path / "run" / "views" / "extraction.json"
    recipe.write_text(recipe.read_text().replace(str(made / "pictures"), str(pictures)))
    return Run(tmp_path / "run")
