"""A small run over images of which some are copies."""

import shutil

import pytest
from copied_images import write_scenes

from bitmosaic import pipeline
from bitmosaic.run.folder import Run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("curated")
    pipeline.cluster(write_scenes(root / "images"), root / "run", 3, views=("hog", "ch"))
    return root


@pytest.fixture
def images(made, tmp_path):
    """A copy of the images for one test. The copied run refers to it."""
    return shutil.copytree(made / "images", tmp_path / "images")


@pytest.fixture
def run(made, images, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    recipe = tmp_path / "run" / "views" / "extraction.json"
    recipe.write_text(recipe.read_text().replace(str(made / "images"), str(images)))
    return Run(tmp_path / "run")
