"""One server over the shared run and one browser, for all tests of this folder."""

import os
import shutil

import pytest
from explored import serving

from bitmosaic.run.folder import Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def server(finished_run, tmp_path_factory):
    """Folder and URL of a run, served for all tests."""
    folder = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(finished_run, folder)
    with serving(Run(folder)) as address:
        yield folder, address


@pytest.fixture
def served_run(server):
    """The run behind `url`. Its edits are removed after the test."""
    folder, _ = server
    yield Run(folder)
    (folder / "edits.jsonl").unlink(missing_ok=True)


@pytest.fixture
def url(server, served_run):
    return server[1]


@pytest.fixture(scope="session")
def browser():
    """Chromium, driven by Playwright. Skipped where there is none, unless BITMOSAIC_BROWSER=required."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        if os.environ.get("BITMOSAIC_BROWSER") == "required":
            pytest.fail("The page tests need Chromium, but it is not installed")
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--use-gl=swiftshader"])
        yield chromium
        chromium.close()
