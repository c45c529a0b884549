"""Measure how long the explorer's pages take to show their images in a real browser."""

import shutil
from dataclasses import dataclass

import numpy as np

from bitmosaic.errors import MissingExtraError, MissingFileError
from bitmosaic.explorer.api import Api
from bitmosaic.images import Progress
from bitmosaic.run.folder import Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCREEN = {"width": 1280, "height": 800}
# There is at least one image on the screen, and all of them are loaded.
DRAWN = """() => {
  const thumbs = [...document.images].filter((image) => image.src.includes("/thumb/"));
  const seen = thumbs.filter((image) => image.getBoundingClientRect().top < innerHeight);
  return seen.length > 0 && seen.every((image) => image.complete) ? performance.now() : 0;
}"""


@dataclass(frozen=True)
class Wait:
    """Seconds from the click until all images on the screen are loaded, for each visit."""

    page: str
    first: float  # with an empty cache, or after the overview
    later: list[float]


def measure(run: Run, repeats: int, progress: Progress) -> list[Wait]:
    """Load the overview, the largest cluster and one of its images in a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise MissingExtraError("bench pages needs playwright: pip install playwright") from error
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise MissingFileError("bench pages needs Chromium; none was found on the PATH. Install it.")
    from bitmosaic.explorer.server import served

    api = Api(run)
    api.thumbnails.prepare(progress)
    api.warm_up()
    largest = int(np.argmax(api.clusters.sizes))
    image = int(api.clusters.members(largest)[0])
    paths = {"overview": "/", "largest cluster": f"/cluster/{largest}", "an image": f"/image/{image}"}
    waits = []
    with served(api) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for done, (name, path) in enumerate(paths.items()):
            progress("visiting", done, len(paths))
            visitor = browser.new_context(viewport=SCREEN)  # type: ignore[arg-type]
            page = visitor.new_page()
            page.goto("about:blank" if path == "/" else url, wait_until="networkidle")
            times = []
            for _ in range(repeats + 1):
                page.goto(url + path, wait_until="commit")
                times.append(page.wait_for_function(DRAWN).json_value() / 1000)
            waits.append(Wait(name, times[0], times[1:]))
            visitor.close()
        browser.close()
    return waits
