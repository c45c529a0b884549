"""A small run with hostile file names, a server over it, and a real browser."""

import os
import shutil

import pytest

from bitmosaic import pipeline
from bitmosaic.run import Run
from explored import HOSTILE, serving
from pictures import write_pictures

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """120 pictures in three clusters that are their folders; three have hostile names, one folder has one, too."""
    root = tmp_path_factory.mktemp("explored")
    folder = write_pictures(root / "pictures", 40)
    (folder / "disc").rename(folder / "<b>disc</b>".replace("/", "\u2215"))
    for number, name in enumerate(HOSTILE):
        os.rename(folder / "stripes" / f"{number:04d}.png", folder / "stripes" / name)
    return pipeline.cluster(folder, root / "run", 3, views=("hog", "ch"), labels="folder").folder


@pytest.fixture
def run(finished_run, tmp_path):
    """A run of one's own, to be edited."""
    shutil.copytree(finished_run, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture
def url(run):
    with serving(run) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    """Chromium, driven by Playwright. Skipped where there is none, unless BITMOSAIC_BROWSER=required."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        if os.environ.get("BITMOSAIC_BROWSER") == "required":
            pytest.fail("the page tests need Chromium, and it is not installed")
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--use-gl=swiftshader"])
        yield chromium
        chromium.close()
